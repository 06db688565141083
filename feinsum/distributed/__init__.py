"""Einsums and programs on many processes: plans that finish first.

::

    einsum, program --planner--> Plan --steps--> engines: local, mpi, on_dask
                       |          |                          |
             search, grids,       '--> counts, levels        '--> counts (Traffic),
             choosing                  (predicted)                recorded, facts

================================= ==================================================
boxes, distribution               which part of a tensor each rank holds
groups, statement_graph,          the einsums, who computes what, plans, their rules
schedule, plans, checks
steps, messages                   what each rank does; collectives and phases
counts, levels                    what moves, in all and between hosts
planner, search, maps,            the best plan; plans from schedules and from other
grids, elimination, assembly,     plans; repeated blocks; prices and measured times
variations, choosing, repeats
storage                           dense and sparse arrays, their parts, on GPUs
local, mpi, on_dask, engines      running plans, on fleets
on_jax                            plans as functions of JAX arrays
fleets, facts, recorded           runs that become facts
display, standalone               plans as text, pictures and programs
program_plan                      plans of programs
================================= ==================================================
"""

from feinsum.distributed.assembly import assemble, assemble_statements
from feinsum.distributed.boxes import Box
from feinsum.distributed.choosing import cheapest, price
from feinsum.distributed.counts import Counts, Edge, Outcome, Rates, RunReport
from feinsum.distributed.display import draw_program, rows_of
from feinsum.distributed.distribution import Distribution, Machine, factorizations
from feinsum.distributed.elimination import Table, least_sum
from feinsum.distributed.engines import ENGINES, Engine, Prepared, prepare
from feinsum.distributed.groups import Access, Group, groups_of
from feinsum.distributed.levels import Levels, between_hosts, moved_by_level
from feinsum.distributed.local import run_here
from feinsum.distributed.mpi import gather, scatter
from feinsum.distributed.on_jax import ShardedFunction, convert_to_jax
from feinsum.distributed.planner import best_plans, plan, plan_statements
from feinsum.distributed.plans import Plan
from feinsum.distributed.program_plan import ProgramPlan, plan_program
from feinsum.distributed.schedule import GroupSchedule, LeafWork, Loop
from feinsum.distributed.statement_graph import Statements, statements
from feinsum.distributed.variations import with_cyclic, with_processes, with_sizes

__all__ = [
    "ENGINES",
    "Access",
    "Box",
    "Counts",
    "Distribution",
    "Edge",
    "Engine",
    "Group",
    "GroupSchedule",
    "LeafWork",
    "Levels",
    "Loop",
    "Machine",
    "Outcome",
    "Plan",
    "Prepared",
    "ProgramPlan",
    "Rates",
    "RunReport",
    "ShardedFunction",
    "Statements",
    "Table",
    "assemble",
    "assemble_statements",
    "best_plans",
    "between_hosts",
    "cheapest",
    "convert_to_jax",
    "draw_program",
    "factorizations",
    "gather",
    "groups_of",
    "least_sum",
    "moved_by_level",
    "plan",
    "plan_program",
    "plan_statements",
    "prepare",
    "price",
    "rows_of",
    "run_here",
    "scatter",
    "statements",
    "with_cyclic",
    "with_processes",
    "with_sizes",
]
