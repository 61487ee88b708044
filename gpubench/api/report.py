"""The names with which a report is written: a run, its figures, marks and tables, comparisons and trends.

`marks` are the points and lines of views, `tables` the derived figures as texts, and `record` makes plain values of all
of them. Numbers are in SI units."""

from gpubench import stats
from gpubench.analysis import frame
from gpubench.analysis.counters import Track
from gpubench.analysis.figure import Figure, ResultRow, Spread
from gpubench.analysis.frame import ListedCase, ListedSuite, listing
from gpubench.analysis.key_figures import KeyValue
from gpubench.analysis.overview import Overview, overview
from gpubench.analysis.peaks import Share
from gpubench.analysis.quantities import headline, judged_values
from gpubench.analysis.records import record
from gpubench.analysis.site import CataloguePage, Site
from gpubench.analysis.summary import Summary, case_counters
from gpubench.analysis.trend import Trend
from gpubench.analysis.views.amortised import Amortisation
from gpubench.analysis.views.breakeven import Payoff
from gpubench.analysis.views.curves import Curve, Point, by_unit, labeller, view_lines, view_points
from gpubench.analysis.views.payoffs import Payoffs
from gpubench.analysis.views.phase_tables import result_lanes
from gpubench.analysis.views.served import Servings
from gpubench.analysis.views.staircases import Staircase
from gpubench.analysis.views.table import Table, derived
from gpubench.analysis.views.tables import derived_lines, tables
from gpubench.analysis.views.transfers import TransferFit, Transfers
from gpubench.base import installation, units
from gpubench.base.clean import code, escape, tidy
from gpubench.base.errors import Unavailable
from gpubench.explaining.ladder import Ladder
from gpubench.explaining.rungs import key_ladders
from gpubench.judging import comparison, fleet_text
from gpubench.judging.comparison import Comparison
from gpubench.judging.finding_text import finding_cells
from gpubench.judging.fleet import FleetJudgement, Standing, Suspect
from gpubench.judging.judge import Finding
from gpubench.model import Device, Measure, Result, Run, Series, Verdict, View
from gpubench.plugins.report import Enclosure, Report

__all__ = [
    "Amortisation",
    "CataloguePage",
    "Comparison",
    "Curve",
    "Device",
    "Enclosure",
    "Figure",
    "Finding",
    "FleetJudgement",
    "KeyValue",
    "Ladder",
    "ListedCase",
    "ListedSuite",
    "Measure",
    "Overview",
    "Payoff",
    "Payoffs",
    "Point",
    "Report",
    "Result",
    "ResultRow",
    "Run",
    "Series",
    "Servings",
    "Share",
    "Site",
    "Spread",
    "Staircase",
    "Standing",
    "Summary",
    "Suspect",
    "Table",
    "Track",
    "TransferFit",
    "Transfers",
    "Trend",
    "Unavailable",
    "Verdict",
    "View",
    "by_unit",
    "case_counters",
    "code",
    "comparison",
    "derived",
    "derived_lines",
    "escape",
    "finding_cells",
    "fleet_text",
    "frame",
    "headline",
    "installation",
    "judged_values",
    "key_ladders",
    "labeller",
    "listing",
    "overview",
    "record",
    "result_lanes",
    "stats",
    "tables",
    "tidy",
    "units",
    "view_lines",
    "view_points",
]
