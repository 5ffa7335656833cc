"""`make layouts`: run the proof of the contract and print it as a table; also written to docs/layouts.md."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.layouts.matrix import CASES, LAYOUTS, describe, reference, run_layout
from tests.pool import Pool

PAGE = Path(__file__).parents[2] / "docs" / "layouts.md"
HEAD = """# The same run on any layout

Made by `make layouts`. Layouts are (devices, per device, accumulation) of one global batch of 32 rows; 203 rows of 5
to 200 tokens, two epochs, the last step of each has 11 rows. Numbers are ||w - w_ref|| / ||w_ref - w_init||, the
largest over ranks, with (1, 32, 1) as reference. The model has two layers and about 100,000 parameters.

"""


def main() -> None:
    pool = Pool()
    columns = [layout for layout in LAYOUTS if layout != LAYOUTS[0]]
    lines = ["| | " + " | ".join(map(describe, columns)) + " | allowed |", "| --- " * (len(columns) + 2) + "|"]
    print(*lines, sep="\n", flush=True)
    try:
        for case in CASES:
            want = reference(pool, case)
            cells = [
                f"{max(run.distance(want) for run in run_layout(pool, case, layout)):.1e}"
                if layout in case.layouts
                else ""
                for layout in columns
            ]
            lines.append(f"| {case.name} | {' | '.join(cells)} | {case.tolerance:.0e} |")
            print(lines[-1], flush=True)
    finally:
        pool.close()
    PAGE.write_text(HEAD + "\n".join(lines) + "\n")
    print(f"written to {PAGE.relative_to(Path.cwd())}", file=sys.stderr)


if __name__ == "__main__":
    import tests.conftest  # noqa: F401  (one passive thread, before torch is imported)

    main()
