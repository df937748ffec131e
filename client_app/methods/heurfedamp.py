"""HeurFedAMP, the client's half: FedAMP's."""

from client_app.methods.fedamp import FedAMP

METHOD = FedAMP
