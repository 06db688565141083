"""Einsums and programs on many processes: plans that move the fewest elements."""

from feinsum.distributed.assembly import assemble, assemble_statements
from feinsum.distributed.boxes import Box
from feinsum.distributed.counts import Counts
from feinsum.distributed.cyclic import CyclicCounts, CyclicPlan, plan_cyclic
from feinsum.distributed.dealing import with_cyclic
from feinsum.distributed.distribution import Distribution
from feinsum.distributed.elimination import Table, least_sum
from feinsum.distributed.groups import Access, Group, groups_of
from feinsum.distributed.leaves import LeafWork
from feinsum.distributed.levels import Levels, between_hosts, moved_by_level
from feinsum.distributed.local import run_here
from feinsum.distributed.machine import Machine, factorizations
from feinsum.distributed.passing import gather, scatter
from feinsum.distributed.picture import rows_of
from feinsum.distributed.plan import Plan
from feinsum.distributed.planner import plan, plan_statements
from feinsum.distributed.prepared import ENGINES, Outcome, Prepared, prepare
from feinsum.distributed.pricing import best_plans, cheapest, price
from feinsum.distributed.program_picture import draw_program
from feinsum.distributed.program_plan import PreparedProgram, ProgramPlan, plan_program
from feinsum.distributed.report import Edge, RunReport
from feinsum.distributed.schedule import GroupSchedule, Loop
from feinsum.distributed.statements import Statements, statements

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
    "PreparedProgram",
    "ProgramPlan",
    "RunReport",
    "Statements",
    "Table",
    "assemble",
    "assemble_statements",
    "best_plans",
    "between_hosts",
    "cheapest",
    "draw_program",
    "factorizations",
    "gather",
    "groups_of",
    "least_sum",
    "moved_by_level",
    "plan",
    "plan_cyclic",
    "plan_program",
    "plan_statements",
    "prepare",
    "price",
    "rows_of",
    "run_here",
    "scatter",
    "statements",
    "with_cyclic",
]
