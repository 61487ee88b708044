"""Write the times for github-action-benchmark, whose tool `customSmallerIsBetter` takes them."""

from gpubench.api import report as gb

from .github_bigger import ActionReport

report: gb.Report = ActionReport("the times for github-action-benchmark (customSmallerIsBetter)", "less")
