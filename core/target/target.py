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

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property

from msgspec.structs import replace

from reshard.core.checkpoint.manifest import PLAN_NAME, Manifest, dump_record
from reshard.core.errors import TargetBusyError, TargetError
from reshard.core.layouts.documents import Document, Documents
from reshard.core.layouts.target_side import TargetSide
from reshard.core.layouts.targets import is_target_name, side_of
from reshard.core.plan.plan import ConversionPlan
from reshard.core.records.plan_file import dump_plan, plan_identity
from reshard.core.runtime.records import Record
from reshard.core.storage.leases.lease import living_holders
from reshard.core.storage.leases.lease_holder import LeaseHolder, new_holder
from reshard.core.storage.leases.local_lease import exclusive
from reshard.core.storage.own_files import check_unlinked
from reshard.core.storage.publishing import (
    MANIFEST_NAME,
    REMOVING_NAME,
    STATE_DIRECTORY,
    WITHDRAWN_NAME,
    is_built_beside,
    working_location,
)
from reshard.core.storage.removal import remove_file
from reshard.core.storage.urls import Location, parse_url
from reshard.core.storage.writing import write_bytes
from reshard.core.target.claim import check_no_other_run, leased, leases_of, publish_manifest, remove_leftovers
from reshard.core.target.clearing import clear
from reshard.core.target.documents import (
    document_names,
    documents_of,
    remove_other_statements,
    write_companions,
    write_documents,
    write_statements,
)
from reshard.core.target.look import Look, look_at
from reshard.core.target.place import check_beside, check_new_place, manifest_to_keep, refuse_occupied
from reshard.core.target.signature import TargetSignature
from reshard.core.target.touched_sources import EarlierWork, find_earlier_work, touched_text
from reshard.core.target.workspace import IDENTITY_NAME, STATE_LISTING, Workspace, read_identity
from reshard.core.text.options import option


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
    def signature(self) -> TargetSignature:
        """The signature of the finished target, which keeps its files as they are."""
        return TargetSignature(self.final, self.signs)

    @property
    def finished(self) -> Workspace:
        """The finished target, whose records stay as they are if they are signed."""
        return Workspace(self.final, self.identity, lift_signature=self.signature.lift)

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
        return look_at(self.final, self.workspace.state, self._read_manifest)

    def _is_committed(self, look: Look) -> bool:
        """True if the finished target of this plan was there at a look; one beside is looked for again."""
        manifest = self._read_manifest() if is_built_beside(self.final) else look.manifest
        return manifest is not None and manifest.identity == self.identity

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
                check_no_other_run(self.final)
            if not was_empty:  # a listing makes some servers read all that was written, for its etags
                remove_leftovers(workspace, self.final, manifest.files, in_place=self.is_mended_in_place)
            write_documents(workspace, self.documents, self.plan)
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

    def _read_manifest(self) -> Manifest | None:
        """Return the target's manifest; None if there is none, or a damaged one that may be overwritten."""
        return manifest_to_keep(self.final, overwrite=self.overwrite)

    @property
    def is_mended_in_place(self) -> bool:
        """True if the workspace is the finished target itself, so that removing one would remove the other."""
        return self.workspace.directory.path == self.final.path

    def _begin(self, look: Look) -> None:
        """Give the workspace to this plan."""
        clear(self.workspace, self.final, look, document_names(self.plan))
        self._write_plan()
        write_bytes(self.workspace.state.child(IDENTITY_NAME), self.identity.encode())
