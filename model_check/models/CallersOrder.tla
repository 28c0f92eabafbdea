---------------------------- MODULE CallersOrder ----------------------------
(* The host mirror where streams keep the caller's order, as they do on a host: that much of its graph has the *)
(* in-process checker states for. What a rank gives to its forward stream happens at once, up to a wait or a   *)
(* page to restore, and the rank goes on when it is done. Rows that were handed on together land together, and *)
(* records and ends pass as soon as the copies before them have landed. A step has one page to restore.        *)
EXTENDS MirrorCases

HeadIn(q, kinds) == q # <<>> /\ Head(q)[1] \in kinds
Computes(r) == HeadIn(compute[r], {"write", "record", "end", "fetch", "use"})
Lands(r) == HeadIn(copies[r], {"copy", "record", "end"})
NothingToCopy(r) == pc[r] = "met" /\ Now(r).copies = <<>>

\* What comes before anything else, in this order: one thing in each state.
First == [what : {"compute"}, who : {r \in Ranks : Computes(r)}] \cup [what : {"copies"}, who : {r \in Ranks : Lands(r)}]
         \cup [what : {"pc"}, who : {r \in Ranks : NothingToCopy(r)}]
Does(x) == CASE x.what = "compute" -> compute'[x.who] = Tail(compute[x.who])
             [] x.what = "copies" -> copies'[x.who] = Tail(copies[x.who])
             [] OTHER -> pc'[x.who] = "copied"

InOrder ==
    IF First # {} THEN Does(CHOOSE x \in First : TRUE)
    ELSE \A r \in Ranks : compute[r] # <<>> => pc'[r] = pc[r] /\ stale'[r] = stale[r]
=============================================================================
