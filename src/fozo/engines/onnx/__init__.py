"""Models as ONNX files whose inputs are the knobs and whose outputs are the taps, and the runtimes that run them.

``schema`` is what writer and runner agree on; ``vit`` and ``export`` write; ``runtimes`` run.
"""
