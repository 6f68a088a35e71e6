"""The target of a conversion: its state before the run, what the run may do to it, and its commit.

State found                                     without overwrite           with overwrite
nothing, or an empty directory                  begin                       begin
unfinished work of the same plan                resume                      resume
the same, but sources were touched since        compare, and resume         compare, and resume
a finished conversion by the same plan          done, or mend what differs  the same
unfinished work of another plan                 refuse                      discard, and begin
a finished conversion, or another checkpoint    refuse                      replace, at the end
anything else                                   refuse                      refuse
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

import xxhash
from msgspec.structs import replace

from reshard.core.checkpoint.manifest import PLAN_NAME, Manifest, dump_record, with_fields
from reshard.core.checkpoint.verify_level import VerifyLevel
from reshard.core.errors import TargetBusyError, TargetError, VerificationError
from reshard.core.layouts.documents import Document, Documents
from reshard.core.layouts.target_side import TargetSide
from reshard.core.layouts.targets import companion_names, is_target_name, side_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.records.plan_file import dump_plan, plan_identity
from reshard.core.runtime.keys import target_key
from reshard.core.runtime.progress import current_progress
from reshard.core.runtime.records import Record
from reshard.core.storage.leases.lease import current_lease, living_holders
from reshard.core.storage.leases.lease_holder import LeaseHolder, new_holder
from reshard.core.storage.leases.local_lease import exclusive
from reshard.core.storage.listing import exists, find_files
from reshard.core.storage.own_files import check_replaced, check_unlinked
from reshard.core.storage.publishing import (
    MANIFEST_NAME,
    REMOVING_NAME,
    SIGNATURE_NAME,
    STATE_DIRECTORY,
    WITHDRAWN_NAME,
    is_built_beside,
    list_names,
    other_files,
    remove_others,
    remove_tree,
    replaced_location,
    temporary_files,
    working_location,
)
from reshard.core.storage.removal import remove_file, remove_files
from reshard.core.storage.transfers import submitted
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.target.claim import leased, leases_of, publish_manifest, remove_leftovers, withdraw_manifest
from reshard.core.target.documents import (
    document_names,
    document_problem,
    documents_of,
    places_problem,
    remove_other_statements,
    statement_problem,
    write_companions,
    write_statements,
)
from reshard.core.target.own_names import own_names, recorded_companions
from reshard.core.target.place import check_beside, check_new_place, manifest_to_keep, refuse_occupied
from reshard.core.target.touched_sources import EarlierWork, find_earlier_work, touched_text
from reshard.core.target.workspace import (
    IDENTITY_NAME,
    LEASES_DIRECTORY,
    STATE_LISTING,
    Workspace,
    read_identity,
    read_records,
)
from reshard.core.text.options import option, spelled


class Look(Record):
    """A target's state at the time of a look.

    Attributes:
        names: names at the target, without the state directory of one built in its place.
        identity: of the workspace's plan, as `read_identity` returns it.
        manifest: of a target built in its place; of another it is read when it is needed.
        has_state: True unless it is built in its place, without a state directory.
        leftovers: state files of one built in its place, without leases, listed before identity and manifest were read.
    """

    names: Collection[str]
    identity: str | None
    manifest: Manifest | None = None
    has_state: bool = True
    leftovers: tuple[Location, ...] = ()


class Claim(Record):
    """A target held by a lease.

    Attributes:
        workspace: ready for the plan.
        is_new: the plan was begun under this lease: no rank has a record, and nothing is committed.
        was_empty: it is built in its place, where nothing was, nor any run's lease: all that appears is this plan's.
        earlier: ranks that were finished before sources were touched: compare them, then call `Target.take_over`.
    """

    workspace: Workspace
    is_new: bool
    was_empty: bool = False
    earlier: EarlierWork | None = None


Signing = Callable[[Location, bytes], None]
"""Writes the signature over all files in a directory, and over the manifest, whose bytes are given."""


class Target(Record, dict=True):
    """The target of one plan.

    `overwrite`: an existing checkpoint may be replaced. `signs`: this run signs it, so that a finished target's
    signature may give way to another.
    """

    final: Location
    plan: ConversionPlan
    overwrite: bool = False
    signs: bool = False

    @classmethod
    def of(cls, url: str, plan: ConversionPlan, *, overwrite: bool = False, signs: bool = False) -> "Target":
        """Return the target of a plan at the URL that a request names: its layout may have a directory in it."""
        layout = plan.inputs.layout
        return cls(side_of(layout).place(parse_url(url), layout), plan, overwrite, signs)

    @property
    def side(self) -> TargetSide:
        """The answers of the plan's layout."""
        return side_of(self.plan.inputs.layout)

    @cached_property
    def identity(self) -> str:
        """The plan's identity."""
        return plan_identity(self.plan)

    @cached_property
    def plan_data(self) -> bytes:
        """The bytes of the plan's file, which is written at the beginning, and at the end for the manifest's digest."""
        return dump_plan(self.plan)

    @cached_property
    def documents(self) -> Documents:
        """The documents beside the files; the metadata of a large job takes seconds, and hundreds of MiB."""
        return documents_of(self.plan)

    @cached_property
    def workspace(self) -> Workspace:
        """The directory that files are written to: apart, unless this plan's own finished target is mended."""
        working = working_location(self.final)
        if working.path != self.final.path and read_identity(self.final.child(STATE_DIRECTORY)) == self.identity:
            working = self.final
        return Workspace(working, self.identity)

    @property
    def finished(self) -> Workspace:
        """The finished target, whose records stay as they are if they are signed."""
        return Workspace(self.final, self.identity, lift_signature=self.lift_signature)

    @property
    def signature(self) -> Location:
        """The place of the finished target's signature."""
        return self.final.child(SIGNATURE_NAME)

    @property
    def keeps_signature(self) -> bool:
        """True if the finished target is signed, and this run does not sign it anew: then no file may change."""
        return not self.signs and exists(self.signature)

    def lift_signature(self) -> bool:
        """Remove the finished target's signature before its files change, if this run signs it anew at its end.

        Returns False if it is signed and stays so: then no file may change.
        """
        if self.keeps_signature:
            return False
        if self.signs and exists(self.signature):
            remove_file(self.signature)
        return True

    def lift_signature_to_repair(self) -> None:
        """Remove the signature as `lift_signature` does; raise TargetError if it stays."""
        if not self.lift_signature():
            raise TargetError(
                f"{self.final}: is signed, and has to be repaired, which its signature would not cover: name the key "
                f"with {option('sign')} to repair it and sign it again"
            )

    @contextmanager
    def claimed(self, ranks: Sequence[int]) -> Iterator[Claim]:
        """Hold a lease on `ranks` while the block runs, with the workspace ready for this plan.

        Raises:
            TargetError: the target is occupied; a TargetBusyError if another run works on one of the ranks, or
                converts something else into it.
        """
        alone = not self.check_usable().has_state
        holder = new_holder(ranks, self.identity)
        with leased(self.final, holder, alone=alone):
            look = self.check_usable()
            with exclusive(leases_of(self.final)):  # or two runs would remove each other's beginnings
                claim = self._begin_unless_begun(holder, look)
            yield replace(claim, was_empty=alone and claim.is_new and not look.names and not look.leftovers)

    def _begin_unless_begun(self, holder: LeaseHolder, look: Look) -> Claim:
        """Begin this plan in the workspace, unless it was begun before, or is carried out."""
        if is_built_beside(self.final):  # another run may have begun while this one waited for the gate
            look = self._look()
            if look.identity != self.identity and self.is_mended_in_place:
                raise TargetError(f"{self.final}: was just replaced by another conversion; start again")
        begun = Claim(self.workspace, is_new=False)
        if look.identity == self.identity or self._is_committed(look):
            return begun
        earlier = self._earlier_work(look)
        # without a lock nothing keeps two runs apart that remove the files of another plan
        unguarded = look.identity is not None and not is_built_beside(self.final)
        if (unguarded or earlier) and (others := living_holders(leases_of(self.final), holder)):
            what = "comparing what is there with the source" if earlier else "about to replace what is there"
            raise TargetBusyError(f"{self.final}: {others[0]} is {what}; start again in a moment")
        if earlier:
            return replace(begun, earlier=earlier)
        if look.leftovers:  # just before they are removed: another run of this plan may have done that, and begun
            look = self._look()
            if look.identity == self.identity:
                return begun
        self._begin(look)
        return replace(begun, is_new=True)

    def check_usable(self) -> Look:
        """Check that the state of the target leaves room for this plan; see the module's table. Return that state."""
        if is_built_beside(self.final):
            check_new_place(self.final)
            check_beside(self.final)
            if self.is_mended_in_place:
                check_unlinked(self.final, STATE_LISTING, is_target_name)
        self.side.check_place(self.final, self.plan.inputs.layout)
        look = self._look()
        is_unfinished = look.identity is not None and look.manifest is None
        if is_unfinished and not self._is_ours(look) and not self.overwrite:
            raise TargetError(
                f"{self.final}: an unfinished conversion by another plan, or of a source that has changed since, is in "
                f"{self.workspace.directory}. Finish that one, or pass {option('overwrite', True)} to discard it"
                f"{touched_text(self.final, self.workspace, self.plan)}"
            )
        if look.names and not self._is_committed(look) and not self.is_resumed_in_place(look):
            refuse_occupied(
                self.final,
                overwrite=self.overwrite,
                brings_others=self.side.brings_others,
                touched=lambda: touched_text(self.final, Workspace(self.final, ""), self.plan),
            )
        return look

    def is_resumed_in_place(self, look: Look) -> bool:
        """True if what was seen at the target is this plan's own unfinished work."""
        return self.is_mended_in_place and self._is_ours(look)

    def _is_ours(self, look: Look) -> bool:
        return look.identity == self.identity or self._earlier_work(look) is not None

    def _earlier_work(self, look: Look) -> EarlierWork | None:
        if not look.identity or look.manifest is not None:
            return None
        return find_earlier_work(self.workspace, look.identity, self.plan)

    def take_over(self) -> None:
        """Give the workspace of earlier work to this plan, for which its sound ranks have records by now."""
        state = self.workspace.state
        remove_file(state.child(MANIFEST_NAME))  # of a run that was killed before it published what it had finished
        self._write_plan()
        write_bytes(state.child(IDENTITY_NAME), self.identity.encode())

    def _write_plan(self) -> None:
        if self.plan_data:  # joined parts have none
            write_bytes(self.workspace.state.child(PLAN_NAME), self.plan_data)

    def _look(self) -> Look:
        state = self.workspace.state
        if is_built_beside(self.final):
            return Look(list_names(self.final), read_identity(state))
        names = set(list_names(self.final))
        # each look at a file is a request, mostly for nothing. Identity and manifest are read after they were listed:
        # what another run of this plan writes meanwhile is not a leftover
        found = self._state_files() if STATE_DIRECTORY in names else ()
        there = {file.name for file in found if file.parent.path == state.path}
        manifest = submitted(Target._read_manifest, self) if MANIFEST_NAME in there else None
        identity = read_identity(state) if IDENTITY_NAME in there else None
        return Look(
            names - {STATE_DIRECTORY},
            identity,
            manifest.result() if manifest else None,
            has_state=STATE_DIRECTORY in names,
            leftovers=found,
        )

    def _state_files(self) -> tuple[Location, ...]:
        """Return the files in the workspace's state directory, without leases."""
        leases = self.workspace.state.child(LEASES_DIRECTORY).path
        return tuple(file for file in find_files(self.workspace.state) if file.parent.path != leases)

    def _is_committed(self, look: Look) -> bool:
        """True if the finished target of this plan was there at a look; one beside is looked for again."""
        manifest = self._read_manifest() if is_built_beside(self.final) else look.manifest
        return manifest is not None and manifest.identity == self.identity

    def check_nothing_foreign(self) -> None:
        """Raise TargetError if the finished target's rank folders contain any files but its own."""
        known = [self.plan.file_name(rank) for rank in self.plan.target_ranks]
        others = other_files(self.final, [*known, *document_names(self.plan), SIGNATURE_NAME], is_target_name)
        if others and self.is_committed():  # otherwise another conversion has replaced it just now
            raise TargetError(
                f"{others[0]}: does not belong to this checkpoint, and MindSpore may take it for a rank's newest file "
                f"({len(others)} such in all). Move it away"
            )

    def is_committed(self) -> bool:
        """True if the finished target of this plan is there."""
        return self.read_committed() is not None

    def read_committed(self) -> Manifest | None:
        """Return the manifest of this plan's finished target; None if there is none."""
        manifest = self._read_manifest()
        return manifest if manifest is not None and manifest.identity == self.identity else None

    def check_not_taken(self) -> None:
        """Raise TargetError if another conversion was begun in the workspace; locks cannot be lost."""
        if not is_built_beside(self.final) and read_identity(self.workspace.state) != self.identity:
            raise TargetError(f"{self.final}: another run is converting something else into it, and has taken it over")

    def reopen(self) -> None:
        """Withdraw the finished target's manifest before missing or wrong files are mended in place.

        Raises:
            TargetError: it is signed, and this run does not sign it again.
        """
        self.lift_signature_to_repair()
        withdraw_manifest(self.final.child(STATE_DIRECTORY))

    def confirm(self, level: VerifyLevel, fingerprint: str | None = None) -> bool:
        """Finish the commit of an interrupted run, and record a new verification: its level, and the fingerprint.

        A signed target's manifest stays as it is, unless this run signs it again. Returns True if it says more now.
        """
        if is_built_beside(self.final):
            self._remove_replaced()
        remove_file(self.final.child(STATE_DIRECTORY, WITHDRAWN_NAME))
        self.side.announce(self.final, self.plan.inputs.layout)
        manifest = self.read_committed()
        if manifest is None or not manifest.verified.is_below(level):
            return False
        if not self.lift_signature():
            current_progress().note(
                f"{self.final}: is signed, so its manifest stays as it is: that it was verified more closely "
                f"({level}) is not recorded. Name the key with {spelled(option('sign'))} to record it"
            )
            return False
        raised = manifest.model_copy(update={"verified": level, "fingerprint": fingerprint})
        write_bytes(self.final.child(STATE_DIRECTORY, MANIFEST_NAME), dump_record(raised))
        return True

    def rewrite_manifest(self, manifest: Manifest, statements: Sequence[Document] = ()) -> None:
        """Replace the finished target's manifest by one that says more of the same files; hold the target meanwhile.

        `statements` are those that are new in it.
        """
        write_statements(self.final, statements)
        write_bytes(self.final.child(STATE_DIRECTORY, MANIFEST_NAME), dump_record(manifest))

    def _remove_replaced(self) -> None:
        replaced = replaced_location(self.final)
        try:
            check_replaced(replaced, own_names(replaced))
        except TargetError as error:
            current_progress().note(f"could not remove {replaced}: {error}")
            return
        remove_tree(replaced)

    def restore_state(self) -> None:
        """Rewrite the finished target's changed or lost plan and identity, and the manifest to match.

        Statements that were changed or lost are removed: what they said is not known here. Call it only while the
        target is claimed.

        Raises:
            TargetError: it is signed, and this run does not sign it again.
        """
        manifest = self.read_committed()
        if manifest is None:  # another run has begun to replace it
            return
        self.lift_signature_to_repair()
        state, plan = self.final.child(STATE_DIRECTORY), self.plan_data
        sound = tuple(each for each in manifest.statements if statement_problem(self.final, each) is None)
        digest = xxhash.xxh3_128_hexdigest(plan)
        restored = with_fields(manifest, target_key(), str(self.final), plan_digest=digest, statements=sound)
        write_bytes(state.child(IDENTITY_NAME), self.identity.encode())
        write_bytes(state.child(PLAN_NAME), plan)
        write_bytes(state.child(MANIFEST_NAME), dump_record(restored))
        remove_other_statements(state, restored)

    def commit(
        self,
        manifest: Manifest,
        statements: Sequence[Document] = (),
        *,
        was_empty: bool = False,
        signing: Signing | None = None,
    ) -> None:
        """Publish the finished files; `manifest` is the commit marker. If it fails, all are still in the workspace.

        `statements` are those that the manifest lists. `signing` signs all of it.

        `was_empty` as in this run's claim. Then nothing is left of other plans: a run of another one may begin here
        only once this run's lease is dead, which `check_not_taken` notices. Files of other programs stay.

        Raises:
            TargetBusyError: it is to be signed, and another run works on other ranks, whose records may still change.
        """
        workspace = self.workspace
        with exclusive(leases_of(self.final)):
            self.check_not_taken()
            if is_built_beside(self.final) and self.is_committed():  # by a run that did other ranks, a moment ago
                return
            if signing:
                self._check_alone()
            if not was_empty:  # a listing makes some servers read all that was written, for its etags
                remove_leftovers(workspace, self.final, manifest.files, in_place=self.is_mended_in_place)
            self._write_documents(workspace.directory)
            write_companions(workspace.directory, self.plan)
            # left by a removal that was killed before the same plan was carried out here again
            remove_file(workspace.state.child(REMOVING_NAME))
            # another run may have written the first one with another zlib: the manifest has the digest of this one
            self._write_plan()
            write_statements(workspace.directory, statements)
            if not was_empty:
                remove_other_statements(workspace.state, manifest)
            data = dump_record(manifest)
            if signing:
                signing(workspace.directory, data)
            publish_manifest(workspace, self.final, data)
            if not was_empty:
                remove_file(self.final.child(STATE_DIRECTORY, WITHDRAWN_NAME))
        self.side.announce(self.final, self.plan.inputs.layout)

    def _check_alone(self) -> None:
        """Raise TargetBusyError if another run works on the target; call it while `exclusive`."""
        lease = current_lease()
        others = living_holders(leases_of(self.final), replace(new_holder(()), run=lease.run if lease else ""))
        if others:
            raise TargetBusyError(
                f"{self.final}: {others[0]} is working on other ranks, and what is signed must not change any more. "
                "Run the same command when it has ended: it signs and publishes what is done"
            )

    def _write_documents(self, directory: Location) -> None:
        """Write the documents beside the files, and verify them."""
        for document in self.documents.each:
            write_bytes(directory.child(document.name), document.data)
            problem = document_problem(directory, document.summary)
            if problem is None and document is self.documents.index:
                records = read_records(self.workspace, self.plan.target_ranks)
                problem = places_problem(directory, self.side, document.summary, records, self.plan)
            if problem is not None:
                raise VerificationError(problem)

    def _read_manifest(self) -> Manifest | None:
        """Return the target's manifest; None if there is none, or a damaged one that may be overwritten."""
        return manifest_to_keep(self.final, overwrite=self.overwrite)

    @property
    def is_mended_in_place(self) -> bool:
        """True if the workspace is the finished target itself, so that removing one would remove the other."""
        return self.workspace.directory.path == self.final.path

    def _begin(self, look: Look) -> None:
        """Give the workspace to this plan: files of another plan are removed, its commit marker first."""
        if is_built_beside(self.final):
            self._clear_beside(look)
        else:
            self._clear_in_place(look)
        self._write_plan()
        write_bytes(self.workspace.state.child(IDENTITY_NAME), self.identity.encode())

    def _clear_beside(self, look: Look) -> None:
        directory, state = self.workspace.directory, self.workspace.state
        left = self._replaceable(self._state_files())
        remove_file(state.child(MANIFEST_NAME))
        # loaders would find old ones with new files
        for name in (*companion_names(), *document_names(self.plan)):
            remove_file(directory.child(name))
        if look.identity is not None:
            remove_file(state.child(IDENTITY_NAME))
        remove_files(left)
        remove_others(directory, (), is_target_name)
        for unfinished in temporary_files(directory, is_target_name):
            if unfinished.parent.name != LEASES_DIRECTORY:  # those belong to living runs
                remove_file(unfinished)  # it may contain unencrypted values

    def _clear_in_place(self, look: Look) -> None:
        """Remove what was seen, and nothing else: each look is a request, and other programs' files may be there."""
        state = self.workspace.state
        left = self._replaceable(look.leftovers)
        replaced: Collection[str] = ()
        if state.child(MANIFEST_NAME).path in {file.path for file in look.leftovers}:
            # loaders would find those of an old model beside new files
            replaced = recorded_companions(self.final)
            withdraw_manifest(state)
            left.append(state.child(WITHDRAWN_NAME))
        for name in (*replaced, *document_names(self.plan), SIGNATURE_NAME):
            if name in look.names:
                remove_file(self.final.child(name))
        if look.identity is not None:
            remove_file(state.child(IDENTITY_NAME))
        remove_files(left)

    def _replaceable(self, files: Iterable[Location]) -> list[Location]:
        """Return state files without those that are removed, or written, in their turn."""
        in_turn = {self.workspace.state.child(name).path for name in (MANIFEST_NAME, PLAN_NAME, IDENTITY_NAME)}
        return [file for file in files if file.path not in in_turn]
