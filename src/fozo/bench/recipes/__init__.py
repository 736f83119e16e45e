"""The paper's tables and figures, one short file each. A new one is found by its file's name."""
