"""A comparison in a terminal that is too narrow for it: a line for each figure, groups as numbered columns."""

import textwrap


def narrow(text: str, width: int) -> str:
    """What `markdown` wrote, for a terminal of so many columns."""
    table, _, rest = text.partition("\n\n")
    rest = "\n".join(_filled(line, width, 2 * line.startswith("-")) for line in rest.split("\n"))
    lines = table.split("\n")
    if max(map(len, lines)) <= width:
        return f"{table}\n\n{rest}"
    figures, *groups = ([cell.strip() for cell in line[1:-1].split(" | ")] for line in (lines[0], *lines[2:]))
    names = [f"[{number}]" for number in range(1, len(groups) + 1)]
    legend = [
        _filled(f"{name} {group[0]}", width, len(name) + 1) for name, group in zip(names, groups, strict=True)
    ]
    first = max(map(len, figures)) + 2
    columns = [[name, *group[1:]] for name, group in zip(names, groups, strict=True)]
    size = max(len(cell) for column in columns for cell in column) + 2
    fit = max(1, (width - first + 2) // size)
    blocks = []
    for start in range(0, len(columns), fit):
        rows = zip(["", *figures[1:]], *columns[start : start + fit], strict=True)
        blocks.append(
            "\n".join(
                f"{row[0]:<{first}}{''.join(f'{cell:<{size}}' for cell in row[1:])}".rstrip() for row in rows
            )
        )
    return "\n\n".join(["\n".join(legend), *blocks, rest])


def _filled(text: str, width: int, indent: int) -> str:
    return textwrap.fill(text, width, subsequent_indent=" " * indent, break_on_hyphens=False)
