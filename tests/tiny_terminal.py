"""As much of a terminal as the live view's tests need: what stands on the screen after a stream of characters, and where the cursor is."""

import re

_PART = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])|\x1b.|(.)", re.DOTALL)


class TinyTerminal:
    """Endless upwards, so that nothing is lost by scrolling; `height` is how far the cursor can go up."""

    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self.lines: list[list[str]] = [[]]
        self.row = self.column = 0
        self.is_cursor_visible = True
        self.is_alternate = False

    def feed(self, stream: str) -> None:
        for found in _PART.finditer(stream):
            arguments, command, character = found.groups()
            if command:
                self._command(arguments, command)
            elif character:
                self._character(character)

    def _command(self, arguments: str, command: str) -> None:
        match command, arguments:
            case "A", _:
                self.row = max(0, len(self.lines) - self.height, self.row - int(arguments or 1))
            case "K", "2":
                self.lines[self.row] = []
            case (("h" | "l"), "?25"):
                self.is_cursor_visible = command == "h"
            case "h", "?1049":
                self.is_alternate = True
            case "m", _:
                pass
            case other:
                raise NotImplementedError(other)

    def _character(self, character: str) -> None:
        match character:
            case "\r":
                self.column = 0
            case "\n":
                self.row, self.column = self.row + 1, 0  # the line discipline adds the \r that is missing in a pipe
                self._reach()
            case _:
                if self.column == self.width:
                    self._character("\n")
                line = self.lines[self.row]
                line.extend(" " * (self.column + 1 - len(line)))
                line[self.column] = character
                self.column += 1

    def _reach(self) -> None:
        while len(self.lines) <= self.row:
            self.lines.append([])

    def text(self) -> list[str]:
        return ["".join(line).rstrip() for line in self.lines]
