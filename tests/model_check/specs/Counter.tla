------------------------------ MODULE Counter ------------------------------
\* A counter that two processes raise to Max, and that is then reset; each logs what it saw.
EXTENDS Naturals, Sequences
CONSTANTS Max, Procs
VARIABLES n, seen

vars == <<n, seen>>
Idle == [p \in Procs |-> [raised |-> FALSE, log |-> <<>>]]
Init == n = 0 /\ seen = Idle

Raise(p) ==
  /\ n < Max
  /\ n' = n + 1
  /\ seen' = [seen EXCEPT ![p] = [raised |-> TRUE, log |-> Append(@.log, n)]]

Reset == n = Max /\ n' = 0 /\ seen' = Idle

Next == (\E p \in Procs : Raise(p)) \/ Reset
Spec == Init /\ [][Next]_vars /\ WF_vars(Next)

\* without the reset, nothing can be done at Max
Stuck == Init /\ [][\E p \in Procs : Raise(p)]_vars

InRange == n \in 0..Max
Small == n < 2
Positive == n > 0
OnlyUp == [][n' > n]_vars
Full == []<>(n = Max)
Beyond == <>(n = Max + 1)
=============================================================================
