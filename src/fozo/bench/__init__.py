"""The benchmark: experiment -> run -> records -> report."""
