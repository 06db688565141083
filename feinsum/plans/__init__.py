"""Plans: einsums on many processes, moving the fewest elements."""

from feinsum.plans.assembly import assemble, assemble_statements
from feinsum.plans.boxes import Box
from feinsum.plans.counts import Counts
from feinsum.plans.cyclic import CyclicCounts, CyclicPlan, plan_cyclic
from feinsum.plans.dealing import with_cyclic
from feinsum.plans.distribution import Distribution
from feinsum.plans.elimination import Table, least_sum
from feinsum.plans.groups import Access, Group, groups_of
from feinsum.plans.leaves import LeafWork
from feinsum.plans.levels import Levels, between_hosts, moved_by_level
from feinsum.plans.local import run_here
from feinsum.plans.machine import Machine, factorizations
from feinsum.plans.passing import gather, scatter
from feinsum.plans.picture import rows_of
from feinsum.plans.plan import Plan
from feinsum.plans.planner import plan, plan_statements
from feinsum.plans.prepared import ENGINES, Outcome, Prepared, prepare
from feinsum.plans.pricing import best_plans, cheapest, price
from feinsum.plans.report import Edge, RunReport
from feinsum.plans.schedule import GroupSchedule, Loop
from feinsum.plans.statements import Statements, statements

__all__ = [
    "ENGINES",
    "Access",
    "Box",
    "Counts",
    "CyclicCounts",
    "CyclicPlan",
    "Distribution",
    "Edge",
    "Group",
    "GroupSchedule",
    "LeafWork",
    "Levels",
    "Loop",
    "Machine",
    "Outcome",
    "Plan",
    "Prepared",
    "RunReport",
    "Statements",
    "Table",
    "assemble",
    "assemble_statements",
    "best_plans",
    "between_hosts",
    "cheapest",
    "factorizations",
    "gather",
    "groups_of",
    "least_sum",
    "moved_by_level",
    "plan",
    "plan_cyclic",
    "plan_statements",
    "prepare",
    "price",
    "rows_of",
    "run_here",
    "scatter",
    "statements",
    "with_cyclic",
]
