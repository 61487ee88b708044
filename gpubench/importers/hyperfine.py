"""Import hyperfine's JSON (`--export-json`): every run of each command, in seconds.

`user` and `system` are means. A command that ended with another exit status than 0 is a failed case (`--ignore-failure`
measures it all the same)."""

from gpubench.api import importer as gb

_MEANS = (("user", "user", "s"), ("system", "system", "s"))


def _read(text: str) -> gb.Imported:
    output = gb.Output("hyperfine", "imported: commands as hyperfine measured them")
    for item in gb.json_value(gb.json_object(text), "results", list):
        command = gb.json_value(item, "command", str)
        with gb.place(command[:200]):
            runs = [gb.measured_number({"times": value}, "times") for value in gb.json_value(item, "times", list)]
            if not runs:
                raise gb.BadOutput("it has no times")
            means = {key: gb.measured_number(item, key) for key, _, _ in _MEANS}
            series = [gb.quantity("time", "s", *runs), *gb.quantities(means, _MEANS)]
            failed = [code for code in gb.json_value(item, "exit_codes", list, []) if code != 0]
            reason = f"{len(failed)} of {len(runs)} runs ended with exit status {failed[0]}" if failed else ""
            failure = {"status": "failed", "cause": "exit-status", "reason": reason} if failed else {}
            output.add("command", (("command", command),), series, **failure)
    return output.imported()


_ACCEPTS = gb.has(r'"results"\s*:\s*\[', r'"command"\s*:', r'"times"\s*:', r'"stddev"\s*:')
importer: gb.Importer = gb.Reader("hyperfine: commands and their runs; JSON", _ACCEPTS, _read)
