------------------------------ MODULE RowStore ------------------------------
(* What a user of the cache sees. A place is a (key, slot). A row is claimed there by a generation of a     *)
(* request, lands some time later (it is durable, and every reader may have it), and is replaced by the     *)
(* next claim. A read asks for what is there when it is planned. It is answered with exactly that, whatever *)
(* was claimed since, or it is let go (the caller gets an error, or did not want it any more).              *)
(* PrefixCache refines this module; no lock, thread, copy or page occurs here.                              *)
EXTENDS FiniteSets

CONSTANTS
    Keys, Slots,
    Generations,    \* one life of one request
    Positions,      \* places in a prompt
    Reads,          \* names of reads
    None            \* no row

(* The identity of a row: whose, which token's, which tensor's. Never where it lies.                        *)
Identities == Generations \X Positions \X Keys

VARIABLES
    rows,       \* what is at each place: None, or an identity and whether it has landed
    asked,      \* the pending reads, each with the identities that it asked for
    answer      \* the read that was answered last: what it asked for, what it got; or None

vars == <<rows, asked, answer>>

Cells == {None} \cup [id : Identities, landed : BOOLEAN]

Init == rows = [k \in Keys |-> [s \in Slots |-> None]] /\ asked = <<>> /\ answer = None

IdAt(cell) == IF cell = None THEN None ELSE cell.id

(* New reads ask for what is there after the action; reads that were planned keep what they asked for.      *)
Plan ==
    \A r \in DOMAIN asked' :
        IF r \in DOMAIN asked THEN asked'[r] = asked[r]
        ELSE /\ r \in Reads
             /\ \E k \in Keys : \A s \in DOMAIN asked'[r] : asked'[r][s] = IdAt(rows'[k][s])

(* A slot belongs to one generation: also the keys that it never writes show nothing of an earlier one.     *)
OneTenant(table) ==
    \A s \in Slots, k, l \in Keys :
        table[k][s] # None /\ table[l][s] # None => table[k][s].id[1] = table[l][s].id[1]

(* Rows are claimed, or forgotten (a new tenant, a new epoch): nothing lands by being claimed.              *)
Claim ==
    /\ rows' \in [Keys -> [Slots -> Cells]]
    /\ \A k \in Keys, s \in Slots :
        rows'[k][s] # rows[k][s] => rows'[k][s] = None \/ (rows'[k][s].id[3] = k /\ ~rows'[k][s].landed)
    /\ OneTenant(rows')
    /\ Plan /\ UNCHANGED answer

Land ==
    /\ rows' \in [Keys -> [Slots -> Cells]] /\ rows' # rows
    /\ \A k \in Keys, s \in Slots :
        rows'[k][s] # rows[k][s] => rows[k][s] # None /\ rows'[k][s] = [rows[k][s] EXCEPT !.landed = TRUE]
    /\ UNCHANGED <<asked, answer>>

Deliver(r) ==
    /\ r \in DOMAIN asked
    /\ answer' = [asked |-> asked[r], got |-> asked[r]]
    /\ asked' = [q \in DOMAIN asked \ {r} |-> asked[q]]
    /\ UNCHANGED rows

Next == Claim \/ Land \/ \E r \in DOMAIN asked : Deliver(r)

Spec == Init /\ [][Next]_vars

(* A delivered row is exactly the (generation, position, key) that was asked for when the read was planned. *)
ReadIntegrity == answer # None => answer.got = answer.asked

TenantIsolation == OneTenant(rows)
=============================================================================
