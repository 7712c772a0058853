"""Verification: does a method, as implemented, follow the distribution that it declares, on this pair and device?"""

from specbench.verification.case import Case as Case
from specbench.verification.case import Check as Check
from specbench.verification.reference import Decoding as Decoding
from specbench.verification.verdict import Outcome as Outcome
from specbench.verification.verdict import Verdict as Verdict
from specbench.verification.verdict import outputs as outputs
from specbench.verification.verdict import undeclared as undeclared
from specbench.verification.verdict import verify as verify
