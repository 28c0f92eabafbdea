------------------------------ MODULE RowStore ------------------------------
(* What a user of the prefix cache sees, on a page. A slot belongs to the tenant that claimed it last. Of   *)
(* each key it holds that tenant's row or none. A hit asks for what is there when it is planned, and gets   *)
(* exactly that, however late it is fetched and whoever has the slot by then; or it raises. PrefixCache is  *)
(* shown to do nothing else (the mapping of its variables to these is in Properties).                       *)
EXTENDS Naturals, Sequences

CONSTANTS Slots, Keys, Absent
\* A row is its identity: <<generation of the request, position, key>>. `Absent` stands for no row.
Cells == Slots \X Keys

\* The generation that has the slot; 0 is nobody.
VARIABLE tenant
\* The row of each (slot, key).
VARIABLE store
\* Whether it is durable.
VARIABLE landed
\* Each hit: its slots and key, what it asked for, what it got: nothing yet, rows, or an error. A hit is `open`
\* until its step is saved: rows that the step itself writes are the ones it means.
VARIABLE hits

vars == <<tenant, store, landed, hits>>
NotYet == <<>>
Error  == <<"error">>

Init == /\ tenant = [s \in Slots |-> 0]
        /\ store = [c \in Cells |-> Absent]
        /\ landed = [c \in Cells |-> FALSE]
        /\ hits = <<>>

\* What hit h finds, as the store is after this step.
Found(h) == [i \in 1..Len(hits'[h].slots) |-> store'[<<hits'[h].slots[i], hits'[h].key>>]]
Raised(h) == hits[h].got = NotYet /\ hits'[h] = [hits[h] EXCEPT !.got = Error]
New == DOMAIN hits' \ DOMAIN hits

-----------------------------------------------------------------------------
\* Slots change hands and rows are claimed: only rows of the slot's new tenant, and no earlier tenant's row stays,
\* of no key. Hits of this step ask again for what it claims; hits on keys it saved first are planned.
Claim ==
    /\ \A c \in Cells :
        \/ tenant'[c[1]] = tenant[c[1]] /\ store'[c] = store[c] /\ landed'[c] = landed[c]
        \/ ~landed'[c] /\ (store'[c] = Absent \/ store'[c][1] = tenant'[c[1]])
    /\ \A h \in DOMAIN hits : LET old == hits[h]  new == hits'[h] IN
        \/ new = old
        \/ old.open /\ new = [old EXCEPT !.open = FALSE]
        \/ old.open /\ new = [old EXCEPT !.open = FALSE, !.asked = Found(h), !.got = NotYet]
        \/ Raised(h)
    /\ \A h \in New : hits'[h].asked = Found(h) /\ hits'[h].got = NotYet

\* Rows become durable.
Land == /\ \A c \in Cells : landed'[c] = landed[c] \/ (landed'[c] /\ store[c] # Absent)
        /\ UNCHANGED <<tenant, store, hits>>

\* A step begins: slots that are given away hold nothing, hits ask for what is there, an idle step's hits end.
Plan == /\ \A s \in Slots : tenant'[s] = tenant[s] \/ tenant'[s] = 0
        /\ \A c \in Cells : IF tenant'[c[1]] = tenant[c[1]]
                            THEN store'[c] = store[c] /\ landed'[c] = landed[c]
                            ELSE store'[c] = Absent /\ ~landed'[c]
        /\ \A h \in DOMAIN hits : hits'[h] = hits[h] \/ Raised(h)
        /\ \A h \in New : hits'[h].open /\ hits'[h].asked = Found(h) /\ hits'[h].got = NotYet

\* A hit is answered, with exactly what it asked for.
Deliver == /\ DOMAIN hits' = DOMAIN hits
           /\ \A h \in DOMAIN hits : \/ hits'[h] = hits[h]
                                     \/ hits[h].got = NotYet /\ hits'[h] = [hits[h] EXCEPT !.got = hits[h].asked]
                                     \/ Raised(h)
           /\ UNCHANGED <<tenant, store, landed>>

Next == Claim \/ Land \/ Plan \/ Deliver
Spec == Init /\ [][Next]_vars

\* A delivered row carries exactly the identity that was asked for, or is absent as it was, or the hit raises.
ReadIntegrity == \A h \in DOMAIN hits : hits[h].got \in {NotYet, Error, hits[h].asked}
=============================================================================
