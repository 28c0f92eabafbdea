------------------------------ MODULE Abstract ------------------------------
\* What Counter refines: a number that goes up by one or back to 0.
EXTENDS Naturals
VARIABLE total
Spec == total = 0 /\ [][total' \in {total + 1, 0}]_total
\* what it does not refine: one that never goes back
Rising == total = 0 /\ [][total' = total + 1]_total
=============================================================================
