"""What a report is written with: a run, its figures and views, comparisons and trends."""

from gpubench import DISTRIBUTION, stats
from gpubench.analysis import frame
from gpubench.analysis.case_counters import CaseCounters, case_counters
from gpubench.analysis.counters import CounterFigure, CounterTable, Track, extremes
from gpubench.analysis.energy import Energy
from gpubench.analysis.figure import WITHIN_PROCESS, Figure, ResultRow, Spread
from gpubench.analysis.key_figures import KeyValue
from gpubench.analysis.listing import ListedCase, ListedSuite, listed, listing
from gpubench.analysis.overview import Overview, SuiteLine, overview
from gpubench.analysis.peaks import ABOVE_PEAK, ABOVE_PEAK_REASON, Basis, Share
from gpubench.analysis.quantities import headline, judged_values
from gpubench.analysis.reproducibility import Reproducibility, recorded_sources_text
from gpubench.analysis.serving import OBJECTIVES, SimulatedPercentile
from gpubench.analysis.site import ListedRun, Site, SiteDevice
from gpubench.analysis.soak import soak_tables
from gpubench.analysis.summary import Summary
from gpubench.analysis.trend import Change, Line, Moment, Trend
from gpubench.analysis.views.amortisation_tables import amortisation_tables, paid_after_text
from gpubench.analysis.views.amortised import STATES, Amortised, amortisations, amortised_of
from gpubench.analysis.views.curves import (
    Curve,
    Point,
    Value,
    axis_value_text,
    by_unit,
    drawable,
    labeller,
    view_lines,
    view_points,
)
from gpubench.analysis.views.derived import (
    Crossover,
    Staircase,
    Step,
    TransferFit,
    Transfers,
    staircases,
    staircases_of,
    transfers,
    transfers_of,
)
from gpubench.analysis.views.fastest import FastestChoices, fastest, path_params
from gpubench.analysis.views.links import link_tables
from gpubench.analysis.views.payoff_tables import payoff_tables
from gpubench.analysis.views.payoffs import Payoff, Payoffs, payoffs, payoffs_of
from gpubench.analysis.views.phase_lanes import lane_of, result_lanes
from gpubench.analysis.views.phase_tables import phase_tables
from gpubench.analysis.views.served import Serving, SessionCheck, energies_of, served_of, servings
from gpubench.analysis.views.serving_tables import energy_tables, serving_tables
from gpubench.analysis.views.table import Table
from gpubench.analysis.views.tables import derived_tables, level_table, transfer_tables
from gpubench.base import units
from gpubench.base.clean import clean, tidy
from gpubench.base.errors import Unavailable
from gpubench.base.markdown import code, escape
from gpubench.base.walk import with_texts
from gpubench.judging import comparison, fleet_text
from gpubench.judging.answer import GateAnswer, NextStep
from gpubench.judging.comparison import Column, Comparison, Difference, RunComparison
from gpubench.judging.finding_text import change, finding_cells
from gpubench.judging.fleet import (
    FailedCases,
    FleetCase,
    FleetFinding,
    FleetGroup,
    FleetJudgement,
    Place,
    Standing,
    Suspect,
    SuspectCase,
    TwoPopulations,
)
from gpubench.judging.judge import Finding
from gpubench.model import Case, Device, EventBit, EventClass, Measure, Result, Run, Series, Verdict, View
from gpubench.plugins.report import ComparisonReport, Enclosure, FleetReport, Report

__all__ = [
    "ABOVE_PEAK",
    "ABOVE_PEAK_REASON",
    "DISTRIBUTION",
    "OBJECTIVES",
    "STATES",
    "WITHIN_PROCESS",
    "Amortised",
    "Basis",
    "Case",
    "CaseCounters",
    "Change",
    "Column",
    "Comparison",
    "ComparisonReport",
    "CounterFigure",
    "CounterTable",
    "Crossover",
    "Curve",
    "Device",
    "Difference",
    "Enclosure",
    "Energy",
    "EventBit",
    "EventClass",
    "FailedCases",
    "FastestChoices",
    "Figure",
    "Finding",
    "FleetCase",
    "FleetFinding",
    "FleetGroup",
    "FleetJudgement",
    "FleetReport",
    "GateAnswer",
    "KeyValue",
    "Line",
    "ListedCase",
    "ListedRun",
    "ListedSuite",
    "Measure",
    "Moment",
    "NextStep",
    "Overview",
    "Payoff",
    "Payoffs",
    "Place",
    "Point",
    "Report",
    "Reproducibility",
    "Result",
    "ResultRow",
    "Run",
    "RunComparison",
    "Series",
    "Serving",
    "SessionCheck",
    "Share",
    "SimulatedPercentile",
    "Site",
    "SiteDevice",
    "Spread",
    "Staircase",
    "Standing",
    "Step",
    "SuiteLine",
    "Summary",
    "Suspect",
    "SuspectCase",
    "Table",
    "Track",
    "TransferFit",
    "Transfers",
    "Trend",
    "TwoPopulations",
    "Unavailable",
    "Value",
    "Verdict",
    "View",
    "amortisation_tables",
    "amortisations",
    "amortised_of",
    "axis_value_text",
    "by_unit",
    "case_counters",
    "change",
    "clean",
    "code",
    "comparison",
    "derived_tables",
    "drawable",
    "energies_of",
    "energy_tables",
    "escape",
    "extremes",
    "fastest",
    "finding_cells",
    "fleet_text",
    "frame",
    "headline",
    "judged_values",
    "labeller",
    "lane_of",
    "level_table",
    "link_tables",
    "listed",
    "listing",
    "overview",
    "paid_after_text",
    "path_params",
    "payoff_tables",
    "payoffs",
    "payoffs_of",
    "phase_tables",
    "recorded_sources_text",
    "result_lanes",
    "served_of",
    "serving_tables",
    "servings",
    "soak_tables",
    "staircases",
    "staircases_of",
    "stats",
    "tidy",
    "transfer_tables",
    "transfers",
    "transfers_of",
    "units",
    "view_lines",
    "view_points",
    "with_texts",
]
