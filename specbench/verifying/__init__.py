"""Floor 4: does a method, as implemented, follow the law that it declares, on this pair and device?"""

from specbench.verifying.case import Case as Case
from specbench.verifying.case import Check as Check
from specbench.verifying.outputs import Decoding as Decoding
from specbench.verifying.verdict import Outcome as Outcome
from specbench.verifying.verdict import Verdict as Verdict
from specbench.verifying.verdict import lawless as lawless
from specbench.verifying.verdict import outputs as outputs
from specbench.verifying.verdict import verify as verify
