"""The sites' port: what comes through it must be the sender's own.

Flower holds the node that a request names against the key that has signed it, and asks no more. So a registered site
with a client of its own could put in a message as the SuperLink's, for another site to carry out, answer in another's
name, or take away what another is to fetch; and whoever knew a public key could have its site taken for connected.
Nothing of that happens by mistake: it is refused, counted and logged with the site's name.
"""

from typing import Any, NoReturn

import grpc
from flwr.common.constant import PUBLIC_KEY_HEADER
from flwr.server.superlink.fleet.grpc_rere.fleet_servicer import FleetServicer
from flwr.supercore.utils import get_metadata_bytes

from fedbayes.deploy.address import Address
from fedbayes.deploy.replies import Replies


class SitesPort(FleetServicer):
    """Flower's, for a state in memory; with a database behind it, it is Flower's as it is."""

    def ActivateNode(self, request: Any, context: Any) -> Any:
        signed = get_metadata_bytes(context.invocation_metadata(), PUBLIC_KEY_HEADER) or b""
        if (state := self._state()) and request.public_key != signed:
            node = state.get_node_id_by_public_key(signed)
            self._refuse(state, node or 0, "another's key in place of its own", context)
        return super().ActivateNode(request, context)

    def PushMessages(self, request: Any, context: Any) -> Any:
        if state := self._state():
            for message in request.messages_list:
                if wrong := _wrong(state, request.node.node_id, Address.of(message.metadata)):
                    self._refuse(state, request.node.node_id, wrong, context)
        return super().PushMessages(request, context)

    def PushObject(self, request: Any, context: Any) -> Any:
        if (state := self._state()) and state.sender(request.session_id) not in (None, request.node.node_id):
            self._refuse(state, request.node.node_id, "a piece of another's message", context)
        return super().PushObject(request, context)

    def ConfirmMessageReceived(self, request: Any, context: Any) -> Any:
        if state := self._state():
            with state.lock:
                asked = state.message_ins_store.get(request.message_object_id)
                replied = request.message_object_id in state.message_res_store
            if replied or (asked is not None and asked.metadata.dst_node_id != request.node.node_id):
                self._refuse(
                    state, request.node.node_id, "word of having received another's message", context
                )
        return super().ConfirmMessageReceived(request, context)

    def _state(self) -> Replies | None:
        state = self.state_factory.state()
        return state if isinstance(state, Replies) else None

    def _refuse(self, state: Replies, node: int, what: str, context: grpc.ServicerContext) -> NoReturn:
        state.tell_forged(node, what)
        context.abort(grpc.StatusCode.PERMISSION_DENIED, "It is not the sender's own.")
        raise AssertionError("abort does not return")


def _wrong(state: Replies, node: int, said: Address) -> str:
    """What is wrong with a message from this node; empty where nothing is.

    One that answers what nobody knows is late, and no more: whoever asked has given it up.
    """
    if said.source != node:
        return "a message in another's name"
    if not said.asked:
        return "a message that answers none"
    with state.lock:
        asked = state.message_ins_store.get(said.asked)
    if asked is not None and (asked.metadata.dst_node_id, asked.metadata.run_id) != (node, said.run):
        return "an answer to what another was asked"
    return ""
