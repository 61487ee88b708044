"""Explain why a case is not faster: pure functions of one run that split a figure's share of its peak into factors.

Each factor, called a rung, names the case or the counter of the run that measured it, its uncertainty, and who could
take it away. A rung without evidence is left out, and the part without a name becomes larger."""
