---------------------------- MODULE Unevaluable ----------------------------
EXTENDS Naturals, Sequences
VARIABLE n
Init == n = 0
Next == n' = n + Head(<<>>)
Spec == Init /\ [][Next]_n
=============================================================================
