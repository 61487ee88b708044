"""Do the work of each command, without the terminal.

Sessions, gates, histories, profiles of programs, live monitoring, imports, redaction.

Commands in `gpubench.cli` and the pytest plugin call these functions and print what they return."""
