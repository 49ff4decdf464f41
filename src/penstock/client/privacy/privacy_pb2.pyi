from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Submission(_message.Message):
    __slots__ = ("publisher", "key", "control", "action", "subject", "categories")
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    publisher: str
    key: str
    control: str
    action: str
    subject: str
    categories: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, publisher: _Optional[str] = ..., key: _Optional[str] = ..., control: _Optional[str] = ..., action: _Optional[str] = ..., subject: _Optional[str] = ..., categories: _Optional[_Iterable[str]] = ...) -> None: ...

class Batch(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[Submission]
    def __init__(self, requests: _Optional[_Iterable[_Union[Submission, _Mapping]]] = ...) -> None: ...

class SignalRequest(_message.Message):
    __slots__ = ("publisher", "key", "subject")
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    publisher: str
    key: str
    subject: str
    def __init__(self, publisher: _Optional[str] = ..., key: _Optional[str] = ..., subject: _Optional[str] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("control", "category", "state", "version")
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    CATEGORY_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    control: str
    category: str
    state: str
    version: int
    def __init__(self, control: _Optional[str] = ..., category: _Optional[str] = ..., state: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class StateList(_message.Message):
    __slots__ = ("states",)
    STATES_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedCompositeFieldContainer[State]
    def __init__(self, states: _Optional[_Iterable[_Union[State, _Mapping]]] = ...) -> None: ...

class Accepted(_message.Message):
    __slots__ = ("request", "status", "repeated", "states")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    REPEATED_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    request: str
    status: str
    repeated: bool
    states: _containers.RepeatedCompositeFieldContainer[State]
    def __init__(self, request: _Optional[str] = ..., status: _Optional[str] = ..., repeated: _Optional[bool] = ..., states: _Optional[_Iterable[_Union[State, _Mapping]]] = ...) -> None: ...

class AcceptedBatch(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[Accepted]
    def __init__(self, requests: _Optional[_Iterable[_Union[Accepted, _Mapping]]] = ...) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("request",)
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    request: str
    def __init__(self, request: _Optional[str] = ...) -> None: ...

class Progress(_message.Message):
    __slots__ = ("subscriber", "status", "deadline")
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    subscriber: str
    status: str
    deadline: str
    def __init__(self, subscriber: _Optional[str] = ..., status: _Optional[str] = ..., deadline: _Optional[str] = ...) -> None: ...

class RequestStatus(_message.Message):
    __slots__ = ("request", "publisher", "control", "action", "categories", "status", "at", "finished", "services", "done", "progress")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    CONTROL_FIELD_NUMBER: _ClassVar[int]
    ACTION_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    SERVICES_FIELD_NUMBER: _ClassVar[int]
    DONE_FIELD_NUMBER: _ClassVar[int]
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    request: str
    publisher: str
    control: str
    action: str
    categories: _containers.RepeatedScalarFieldContainer[str]
    status: str
    at: str
    finished: str
    services: int
    done: int
    progress: _containers.RepeatedCompositeFieldContainer[Progress]
    def __init__(self, request: _Optional[str] = ..., publisher: _Optional[str] = ..., control: _Optional[str] = ..., action: _Optional[str] = ..., categories: _Optional[_Iterable[str]] = ..., status: _Optional[str] = ..., at: _Optional[str] = ..., finished: _Optional[str] = ..., services: _Optional[int] = ..., done: _Optional[int] = ..., progress: _Optional[_Iterable[_Union[Progress, _Mapping]]] = ...) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("publisher", "status", "limit", "after")
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    publisher: str
    status: str
    limit: int
    after: str
    def __init__(self, publisher: _Optional[str] = ..., status: _Optional[str] = ..., limit: _Optional[int] = ..., after: _Optional[str] = ...) -> None: ...

class Requests(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[RequestStatus]
    def __init__(self, requests: _Optional[_Iterable[_Union[RequestStatus, _Mapping]]] = ...) -> None: ...

class PublisherRequest(_message.Message):
    __slots__ = ("publisher",)
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    publisher: str
    def __init__(self, publisher: _Optional[str] = ...) -> None: ...

class ControlDescription(_message.Message):
    __slots__ = ("name", "stateful", "default", "categories", "regions", "global_privacy_control")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATEFUL_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_FIELD_NUMBER: _ClassVar[int]
    CATEGORIES_FIELD_NUMBER: _ClassVar[int]
    REGIONS_FIELD_NUMBER: _ClassVar[int]
    GLOBAL_PRIVACY_CONTROL_FIELD_NUMBER: _ClassVar[int]
    name: str
    stateful: bool
    default: str
    categories: _containers.RepeatedScalarFieldContainer[str]
    regions: _containers.RepeatedScalarFieldContainer[str]
    global_privacy_control: bool
    def __init__(self, name: _Optional[str] = ..., stateful: _Optional[bool] = ..., default: _Optional[str] = ..., categories: _Optional[_Iterable[str]] = ..., regions: _Optional[_Iterable[str]] = ..., global_privacy_control: _Optional[bool] = ...) -> None: ...

class PublisherDescription(_message.Message):
    __slots__ = ("publisher", "controls", "retries", "retry_gap")
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    CONTROLS_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    RETRY_GAP_FIELD_NUMBER: _ClassVar[int]
    publisher: str
    controls: _containers.RepeatedCompositeFieldContainer[ControlDescription]
    retries: int
    retry_gap: float
    def __init__(self, publisher: _Optional[str] = ..., controls: _Optional[_Iterable[_Union[ControlDescription, _Mapping]]] = ..., retries: _Optional[int] = ..., retry_gap: _Optional[float] = ...) -> None: ...

class OfferedStatesRequest(_message.Message):
    __slots__ = ("publisher", "subject")
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    publisher: str
    subject: str
    def __init__(self, publisher: _Optional[str] = ..., subject: _Optional[str] = ...) -> None: ...

class StatesRequest(_message.Message):
    __slots__ = ("subscriber", "subject")
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    subscriber: str
    subject: str
    def __init__(self, subscriber: _Optional[str] = ..., subject: _Optional[str] = ...) -> None: ...

class ContactRequest(_message.Message):
    __slots__ = ("publisher", "subject", "email", "mobile")
    PUBLISHER_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    EMAIL_FIELD_NUMBER: _ClassVar[int]
    MOBILE_FIELD_NUMBER: _ClassVar[int]
    publisher: str
    subject: str
    email: str
    mobile: str
    def __init__(self, publisher: _Optional[str] = ..., subject: _Optional[str] = ..., email: _Optional[str] = ..., mobile: _Optional[str] = ...) -> None: ...

class Contact(_message.Message):
    __slots__ = ("addresses",)
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    addresses: int
    def __init__(self, addresses: _Optional[int] = ...) -> None: ...

class ReceiptRequest(_message.Message):
    __slots__ = ("request", "subject")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    request: str
    subject: str
    def __init__(self, request: _Optional[str] = ..., subject: _Optional[str] = ...) -> None: ...

class ReceiptText(_message.Message):
    __slots__ = ("json_text",)
    JSON_TEXT_FIELD_NUMBER: _ClassVar[int]
    json_text: str
    def __init__(self, json_text: _Optional[str] = ...) -> None: ...

class Answer(_message.Message):
    __slots__ = ("request", "subscriber")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    request: str
    subscriber: str
    def __init__(self, request: _Optional[str] = ..., subscriber: _Optional[str] = ...) -> None: ...

class Answered(_message.Message):
    __slots__ = ("request", "subscriber", "status")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    SUBSCRIBER_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    request: str
    subscriber: str
    status: str
    def __init__(self, request: _Optional[str] = ..., subscriber: _Optional[str] = ..., status: _Optional[str] = ...) -> None: ...

class DefinitionName(_message.Message):
    __slots__ = ("kind", "name")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ...) -> None: ...

class Definition(_message.Message):
    __slots__ = ("kind", "name", "json_text")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    JSON_TEXT_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    json_text: str
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., json_text: _Optional[str] = ...) -> None: ...

class DefinitionChange(_message.Message):
    __slots__ = ("kind", "name", "epoch", "changed")
    KIND_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    CHANGED_FIELD_NUMBER: _ClassVar[int]
    kind: str
    name: str
    epoch: int
    changed: bool
    def __init__(self, kind: _Optional[str] = ..., name: _Optional[str] = ..., epoch: _Optional[int] = ..., changed: _Optional[bool] = ...) -> None: ...

class Problem(_message.Message):
    __slots__ = ("code", "message", "fix", "places")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    PLACES_FIELD_NUMBER: _ClassVar[int]
    code: str
    message: str
    fix: str
    places: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, code: _Optional[str] = ..., message: _Optional[str] = ..., fix: _Optional[str] = ..., places: _Optional[_Iterable[str]] = ...) -> None: ...
