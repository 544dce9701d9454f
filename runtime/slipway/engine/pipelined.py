"""The worker of an engine with pipeline stages, of which this process has the first.

As many steps are under way as there are stages. The first stage's run in a thread here; what comes of a step
is told by the rank that draws, and to the stages before it with the next plan.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor

from slipway.dist.mesh import Mesh
from slipway.engine.executor import Worker
from slipway.engine.link import Step
from slipway.engine.plan import Masks, StepOutput, StepPlan, written_masks
from slipway.engine.ranked import RankedWorker
from slipway.engine.team import Team
from slipway.engine.telling import Telling


class PipelinedWorker(RankedWorker):
    """Launching returns at once, also on a CPU: the stages are elsewhere, or in a thread."""

    def __init__(self, worker: Worker, team: Team, mesh: Mesh) -> None:
        super().__init__(worker, team)
        self.runs_ahead = True
        self._drawing = mesh.drawing
        self._others = [rank for rank in range(1, mesh.size) if rank != mesh.drawing]
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="stage")
        self._telling = Telling()
        self._plan: StepPlan | None = None
        self._here: deque[Future[StepOutput]] = deque()
        """Of steps under way, this stage's part."""

    def launch(self, plan: StepPlan) -> None:
        self._plan = plan = self._telling.launched(plan)
        self.team.tell(Step(plan), self._others)
        self._here.append(self._thread.submit(self._step, plan))

    def draw(self, masks: Masks | None = None) -> None:
        """The rank that draws has nothing to do before the other stages have: it is told now."""
        plan, self._plan = self._plan, None
        assert plan is not None, "draw is called once after each launch"
        self.team.tell(Step(plan, written_masks(masks)), [self._drawing])

    def collect(self) -> StepOutput:
        output = self.team.made()
        self._here.popleft().result()  # raises what interrupted it
        assert output is not None, "it is interrupted where a step fails here"
        self._telling.collected(output)
        return output

    def close(self) -> None:
        self._worker.leave()
        self._thread.shutdown()
        super().close()

    def _step(self, plan: StepPlan) -> StepOutput:
        try:
            self._worker.launch(plan)
            self._worker.draw()
            return self._worker.collect()
        except Exception:
            self.team.interrupt()
            raise
