"""The sites' port, with Flower's server and real keys: what comes through it must be the sender's own."""

from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import grpc
import pytest
from flwr.app import Message
from flwr.client.grpc_rere_client.node_auth_client_interceptor import NodeAuthClientInterceptor
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.common.serde import message_to_proto
from flwr.proto.fleet_pb2 import ActivateNodeRequest, PullMessagesRequest, PushMessagesRequest
from flwr.proto.fleet_pb2_grpc import FleetStub
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree, PushObjectRequest
from flwr.proto.node_pb2 import Node
from flwr.server.superlink.fleet.grpc_rere.node_auth_server_interceptor import NodeAuthServerInterceptor
from flwr.supercore.inflatable.inflatable_object import get_object_tree
from flwr.supercore.primitives.asymmetric import generate_key_pairs, public_key_to_bytes
from messages import answers, begin, contents_of, message, new_run, push

from fedbayes.deploy import replies, superlink
from fedbayes.deploy.linkstate import MemoryState, number_of


class Site:
    """A site with a client of its own: it signs with its key, and says what it likes."""

    def __init__(self, name: str) -> None:
        self.name, self.pair = name, generate_key_pairs()
        self.key = public_key_to_bytes(self.pair[1])
        self.node = number_of(self.key)
        self.port: Any = None

    def connect(self, address: str) -> None:
        channel = grpc.insecure_channel(address)
        self.port = FleetStub(grpc.intercept_channel(channel, NodeAuthClientInterceptor(*self.pair)))

    def sends(self, sent: Message, tree: ObjectTree | None = None) -> Any:
        return self.port.PushMessages(
            PushMessagesRequest(
                node=Node(node_id=self.node),
                messages_list=[message_to_proto(sent)],
                message_object_trees=[tree or get_object_tree(sent)],
            )
        )

    def pushes(self, run: int, session: str, sent: Message, missing: list[str]) -> list[bool]:
        """The objects of a message."""
        return [
            self.port.PushObject(
                PushObjectRequest(
                    node=Node(node_id=self.node), run_id=run, session_id=session,
                    object_id=name, object_content=content,
                )
            ).stored
            for name, content in contents_of(sent, missing).items()
        ]  # fmt: skip

    def answers(self, run: int, sent: Message) -> list[bool]:
        """The whole of a message."""
        taken = self.sends(sent)
        return self.pushes(run, taken.session_id, sent, list(taken.objects_to_push))

    def confirms(self, run: int, message_id: str) -> None:
        self.port.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(
                node=Node(node_id=self.node), run_id=run, message_object_id=message_id
            )
        )


class Federation:
    """A coordinator's port with two sites, each of which was asked something in a run under way and has fetched it."""

    def __init__(self, state: MemoryState, address: str, sites: list[Site]) -> None:
        self.state, self.address, self.sites = state, address, sites
        self.run = new_run(state)
        task = int(state.run_ids[self.run].run.primary_task_id or 0)
        assert state.claim_task(task) and state.activate_task(task)
        self.asked: list[Message] = []
        for site in sites:
            site.connect(address)
            site.port.ActivateNode(ActivateNodeRequest(public_key=site.key, heartbeat_interval=30))
            self.asked.append(message(self.run, SUPERLINK_NODE_ID, site.node, "", 10))
            push(state, self.run, self.asked[-1])
            (taken,) = self.fetched_by(site)
            assert taken.metadata.message_id == self.asked[-1].metadata.message_id

    def fetched_by(self, site: Site) -> Any:
        return site.port.PullMessages(PullMessagesRequest(node=Node(node_id=site.node))).messages_list

    def reply(self, source: int, to: int) -> Message:
        """Of one site to what another was asked."""
        asked = self.asked[to].metadata.message_id
        return message(self.run, self.sites[source].node, SUPERLINK_NODE_ID, asked, 100)

    def answer(self, to: int) -> Message:
        """What the run finds in place of it."""
        (found,) = answers(self.state, self.run, self.asked[to])
        return found


@pytest.fixture
def federation(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> Iterator[Federation]:
    program = import_module("flwr.superlink.cli.flower_superlink")
    factory = import_module("flwr.server.superlink.linkstate.linkstate_factory")
    for place, name in (
        (program, "FleetServicer"),
        (program, "GRPC_MAX_MESSAGE_LENGTH"),
        (factory, "InMemoryLinkState"),
    ):
        monkeypatch.setattr(place, name, getattr(place, name))
    superlink.prepare({"sites": str(tmp_path)})
    sites = [Site("site-0"), Site("site-1")]
    monkeypatch.setattr(MemoryState, "KEYS", {site.key: site.name for site in sites})
    state = begin()
    states = SimpleNamespace(state=lambda: state)
    server = program._run_fleet_api_grpc_rere(
        address="127.0.0.1:0",
        state_factory=states,
        objectstore_factory=SimpleNamespace(store=lambda: state.object_store),
        enable_supernode_auth=True,
        certificates=None,
        interceptors=[NodeAuthServerInterceptor(states)],  # type: ignore[arg-type]
    )
    try:
        yield Federation(state, server.bound_address, sites)
    finally:
        server.stop(None)


def refused() -> Any:
    return pytest.raises(grpc.RpcError, match="PERMISSION_DENIED")


def test_what_is_a_sites_own_goes_through(federation: Federation) -> None:
    site, *_ = federation.sites
    site.confirms(federation.run, federation.asked[0].metadata.message_id)
    reply = federation.reply(0, to=0)
    assert all(site.answers(federation.run, reply))
    found = federation.answer(0)
    assert found.metadata.message_id == reply.metadata.message_id and not found.has_error()
    assert not federation.state.forged


def test_no_site_instructs_another(federation: Federation, caplog: pytest.LogCaptureFixture) -> None:
    """As the SuperLink: the other site would carry it out, as what the run asks of it."""
    hostile, other = federation.sites
    other.answers(federation.run, federation.reply(1, to=1))
    forged = message(federation.run, SUPERLINK_NODE_ID, other.node, "", 10)
    with refused():
        hostile.answers(federation.run, forged)
    assert list(federation.fetched_by(other)) == []
    assert federation.state.forged == {"site-0": 1}
    assert "Site site-0 has sent a message in another's name" in caplog.text


def test_a_site_that_forges_on_and_on_does_not_fill_the_log(
    federation: Federation, caplog: pytest.LogCaptureFixture
) -> None:
    federation.state.activate_node(federation.sites[0].node, 30)
    for _ in range(5):
        federation.state.tell_forged(federation.sites[0].node, "a message in another's name")
        federation.state.tell_forged(7, "another's key in place of its own")
    assert federation.state.forged == {"site-0": 5}
    assert caplog.text.count("was refused") == 2


def test_no_site_instructs_another_in_its_own_name(federation: Federation) -> None:
    hostile, other = federation.sites
    with refused():
        hostile.answers(federation.run, message(federation.run, hostile.node, other.node, "", 10))
    assert federation.state.forged == {"site-0": 1}


@pytest.mark.parametrize("source", [0, 1])
def test_no_site_answers_what_another_was_asked(federation: Federation, source: int) -> None:
    """In its own name or in the other's; the other's own answer counts."""
    hostile, other = federation.sites
    with refused():
        hostile.answers(federation.run, federation.reply(source, to=1))
    assert federation.state.forged == {"site-0": 1}
    reply = federation.reply(1, to=1)
    assert all(other.answers(federation.run, reply))
    assert federation.answer(1).metadata.message_id == reply.metadata.message_id


@pytest.mark.parametrize(("source", "to"), [(1, 1), (1, 0), (0, 1)])
def test_what_is_inside_a_reply_is_in_the_same_name(federation: Federation, source: int, to: int) -> None:
    """The coordinator goes by what a site says of a message, the run by what stands in it."""
    hostile, _ = federation.sites
    inside = federation.reply(source, to)
    around = message_of(federation.reply(0, to=0), inside.metadata.message_id)
    taken = hostile.sends(around, get_object_tree(inside))
    *_, last = hostile.pushes(federation.run, taken.session_id, inside, list(taken.objects_to_push))
    assert not last and federation.state.forged == {"site-0": 1}
    found = federation.answer(0)
    assert found.has_error() and found.error.reason == replies.FORGED
    assert inside.metadata.message_id not in federation.state.object_store


def message_of(sent: Message, message_id: str) -> Message:
    """The same under another id."""
    sent.metadata.__dict__["_message_id"] = message_id
    return sent


def test_a_reply_is_the_root_of_its_own_parts(federation: Federation) -> None:
    """Else what is looked at when it is whole would not be what the run is given."""
    hostile, _ = federation.sites
    taken = hostile.sends(federation.reply(0, to=0), get_object_tree(federation.reply(1, to=1)))
    assert list(taken.objects_to_push) == [] and federation.state.forged == {"site-0": 1}
    assert federation.answer(0).error.reason == replies.FORGED


def test_no_reply_has_another_message_among_its_parts(federation: Federation) -> None:
    """Dropped, it would take that one along: another site could not fetch what it was asked."""
    hostile, _ = federation.sites
    reply, asked = federation.reply(0, to=0), federation.asked[1].metadata.message_id
    hostile.sends(
        reply, ObjectTree(object_id=reply.metadata.message_id, children=[ObjectTree(object_id=asked)])
    )
    hostile.port.PullMessages(
        PullMessagesRequest(node=Node(node_id=hostile.node))
    )  # so it has given its reply up
    assert asked in federation.state.object_store and federation.state.forged == {"site-0": 1}
    assert federation.answer(0).error.reason == replies.FORGED


def test_no_site_pushes_pieces_of_anothers_reply(federation: Federation) -> None:
    hostile, other = federation.sites
    reply = federation.reply(1, to=1)
    taken = other.sends(reply)
    words = (federation.run, taken.session_id, reply, list(taken.objects_to_push))
    with refused():
        hostile.pushes(*words)
    assert federation.state.forged == {"site-0": 1}
    assert all(other.pushes(*words)) and not federation.answer(1).has_error()


def test_no_site_takes_away_what_another_is_to_fetch(federation: Federation) -> None:
    hostile, other = federation.sites
    asked, reply = federation.asked[1].metadata.message_id, federation.reply(1, to=1)
    assert all(other.answers(federation.run, reply))
    for message_id in (asked, reply.metadata.message_id):
        with refused():
            hostile.confirms(federation.run, message_id)
        assert message_id in federation.state.object_store
    assert federation.state.forged == {"site-0": 2}


def test_no_site_is_activated_by_anothers_key(federation: Federation) -> None:
    """A public key is no secret: whoever had it could have an absent site taken for connected, and keep it out."""
    hostile, other = federation.sites
    assert federation.state.deactivate_node(other.node)
    request = ActivateNodeRequest(public_key=other.key, heartbeat_interval=30)
    stranger = Site("stranger")
    stranger.connect(federation.address)
    for one in (hostile, stranger):
        with refused():
            one.port.ActivateNode(request)
    assert not federation.state.connected()["site-1"]
    assert federation.state.forged == {"site-0": 1}
    other.port.ActivateNode(request)
    assert federation.state.connected()["site-1"]
