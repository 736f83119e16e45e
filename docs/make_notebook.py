"""Run examples/quickstart.ipynb and store what it prints: ``python docs/make_notebook.py`` (``make pages`` does).

Kept is what was printed, without dates, and pictures as JPEG alone. Another processor may print other last digits.
"""

import json
import re
from pathlib import Path
from typing import Any

NOTEBOOK = Path(__file__).parent.parent / "examples" / "quickstart.ipynb"
DATES = re.compile(r" \(\d{4}-\d\d-\d\d [\d:]+Z\)")


def executed(path: Path = NOTEBOOK) -> dict[str, Any]:
    """Run a notebook; what a cell prints is in one piece."""
    import nbformat
    from jupyter_client.manager import KernelManager
    from nbclient import NotebookClient

    notebook: Any = nbformat.read(path, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(notebook, timeout=200, record_timing=False, km=KernelManager(transport="ipc")).execute()
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        for later in range(len(outputs) - 1, 0, -1):  # a line may arrive in pieces
            if "text" in outputs[later] and outputs[later].get("name") == outputs[later - 1].get("name"):
                outputs[later - 1].text += outputs.pop(later).text
        for output in outputs:
            if "text" in output:
                output.text = DATES.sub("", output.text)
            if "image/jpeg" in output.get("data", {}):
                output.data = {"image/jpeg": output.data["image/jpeg"], "text/plain": "<picture>"}
    result: dict[str, Any] = notebook
    return result


if __name__ == "__main__":
    NOTEBOOK.write_text(json.dumps(executed(), indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
