"""The Open Inference Protocol, version 2: tensors of a request as events, scores as tensors.

See https://github.com/kserve/open-inference-protocol. Tensors may be JSON, or binary behind the JSON (the
extension `binary_tensor_data`).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from streampair.models import Model
from streampair_connectors.serve.errors import Refusal
from streampair_connectors.serve.messages import (
    InferAnswer,
    InferRequest,
    ModelInfo,
    ModelMetadata,
    RequestedOutput,
    Tensor,
    TensorMetadata,
)
from streampair_connectors.serve.scoring import Body, Coins, Decoder, Scores

__all__ = ["HEADER_LENGTH", "infer_answer", "infer_events", "model_metadata", "parse_request"]

HEADER_LENGTH: Final = "Inference-Header-Content-Length"
"""Header: length of the JSON where binary tensors follow it."""

_DTYPES = {
    "BOOL": "?",
    **{f"UINT{bits}": f"<u{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"INT{bits}": f"<i{bits // 8}" for bits in (8, 16, 32, 64)},
    **{f"FP{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)},
}
_WHOLE = {name: np.iinfo(kind) for name, kind in _DTYPES.items() if "INT" in name}
_LARGEST = {name: float(np.finfo(kind).max) for name, kind in _DTYPES.items() if name.startswith("FP")}


_decode = msgspec.json.Decoder(InferRequest).decode
_parse = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def parse_request(body: bytes, length: str | None) -> tuple[InferRequest, bytes]:
    """Read a request: its JSON, and the binary tensors behind it.

    Parameters
    ----------
    length
        The header `HEADER_LENGTH`.

    Raises
    ------
    Refusal
        400: it is not JSON. 422: it is no request of the protocol.
    """
    end = len(body)
    if length is not None:
        if not (length.isascii() and length.isdigit()) or len(length) > 10 or int(length) > end:
            raise Refusal(400, f"{HEADER_LENGTH} is not the length of the JSON", fix="correct the header")
        end = int(length)
    text = body[:end]
    try:
        request = _decode(text)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        try:
            _parse(text)
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            raise Refusal(400, "the body is not JSON", fix="send a request of the protocol") from None
        raise Refusal(
            422,
            f"the body is no inference request: {error}",
            fix='send {"inputs": [{"name": ..., "shape": [...], "datatype": "FP64", "data": [...]}]}',
        ) from None
    return request, body[end:]


def infer_events(request: InferRequest, binary: bytes, decoder: Decoder) -> list[Body]:
    """The events of a request: an input for each field, or one matrix whose columns are the fields.

    Parameters
    ----------
    binary
        The binary tensors behind the JSON.

    Raises
    ------
    Refusal
        422: the tensors do not fit together, or are none.
    """
    if not request.inputs:
        raise _wrong("the request has no inputs")
    rest = memoryview(binary)
    columns: dict[str, list[Any]] = {}
    for tensor in request.inputs:
        values, rest = _values(tensor, rest)
        if len(request.inputs) == 1 and len(tensor.shape) == 2 and tensor.name not in (decoder.fields or ()):
            columns = _matrix(tensor, values, decoder)
            break
        if tensor.name in columns:
            raise _wrong(f"the input {tensor.name!r} is there twice")
        if len(tensor.shape) > 2 or (len(tensor.shape) == 2 and tensor.shape[1] != 1) or not tensor.shape:
            raise _wrong(f"the input {tensor.name!r} has the shape {tensor.shape}, not [n] or [n, 1]")
        columns[tensor.name] = values
    if len(rest):
        raise _wrong("there are more binary data than the inputs say")
    if len({len(values) for values in columns.values()}) > 1:
        raise _wrong("the inputs have different numbers of rows")
    names = list(columns)
    rows = zip(*columns.values(), strict=True)
    return [
        Body(_encode({name: value for name, value in zip(names, row, strict=True) if value is not None}))
        for row in rows
    ]


def _matrix(tensor: Tensor, values: list[Any], decoder: Decoder) -> dict[str, list[Any]]:
    fields = decoder.fields
    if fields is None:
        raise _wrong("the features have no order here: events declare their own")
    if tensor.shape[1] != len(fields):
        raise _wrong(
            f"the matrix {tensor.name!r} has {tensor.shape[1]} columns, and there are {len(fields)} features"
        )
    return {name: values[i :: len(fields)] for i, name in enumerate(fields)}


def _values(tensor: Tensor, rest: memoryview) -> tuple[list[Any], memoryview]:
    """Values of a tensor, row by row, None for NaN; and the binary data behind it."""
    if any(size < 0 for size in tensor.shape):
        raise _wrong(f"the input {tensor.name!r} has a negative length in its shape")
    if tensor.datatype != "BYTES" and tensor.datatype not in _DTYPES:
        raise _wrong(f"the input {tensor.name!r} has an unknown datatype")
    count = math.prod(tensor.shape)
    size = (tensor.parameters or {}).get("binary_data_size")
    if size is None:
        values = _flat(tensor)
        for place, value in enumerate(values):
            if not _fits(tensor.datatype, value):
                raise _wrong(f"the input {tensor.name!r} has at {place} a value that is no {tensor.datatype}")
    elif isinstance(size, bool) or not isinstance(size, int) or not 0 <= size <= len(rest):
        raise _wrong(f"the input {tensor.name!r} has a binary_data_size that is not there")
    else:
        part, rest = rest[:size], rest[size:]
        values = _texts(tensor, part) if tensor.datatype == "BYTES" else _numbers(tensor, part)
    if len(values) != count:
        raise _wrong(f"the input {tensor.name!r} has {len(values)} values, and its shape says {count}")
    return [_finite(tensor, value) for value in values], rest


def _finite(tensor: Tensor, value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        if math.isnan(value):
            return None
        raise _wrong(f"the input {tensor.name!r} has an infinite value")
    return value


def _flat(tensor: Tensor) -> list[Any]:
    """Values of a JSON tensor, row by row; its data are flat, or nested as its shape says."""
    data = tensor.data if isinstance(tensor.data, list) else []
    if not any(isinstance(item, list) for item in data):
        return data
    if len(data) != math.prod(tensor.shape[:1]):
        raise _ragged(tensor)
    for size in tensor.shape[1:]:
        if not all(isinstance(row, list) and len(row) == size for row in data):
            raise _ragged(tensor)
        data = [item for row in data for item in row]
    if any(isinstance(item, list) for item in data):
        raise _ragged(tensor)
    return data


def _ragged(tensor: Tensor) -> Refusal:
    return _wrong(f"the input {tensor.name!r} has nested data that are not of its shape {tensor.shape}")


def _fits(datatype: str, value: Any) -> bool:
    """Whether a JSON value is of a datatype; None is a missing value, and texts are left to the decoder."""
    if value is None:
        return True
    if datatype in ("BOOL", "BYTES"):
        return isinstance(value, bool if datatype == "BOOL" else str)
    if datatype in _WHOLE:
        whole = isinstance(value, int) and not isinstance(value, bool)
        return whole and _WHOLE[datatype].min <= value <= _WHOLE[datatype].max
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return not number or not math.isfinite(value) or abs(value) <= _LARGEST[datatype]


def _numbers(tensor: Tensor, part: memoryview) -> list[Any]:
    dtype = np.dtype(_DTYPES[tensor.datatype])
    if len(part) % dtype.itemsize:
        raise _wrong(f"the input {tensor.name!r} has a binary_data_size that is no multiple of its datatype")
    values: list[Any] = np.frombuffer(part, dtype=dtype).tolist()
    return values


def _texts(tensor: Tensor, part: memoryview) -> list[Any]:
    """Texts of a binary tensor: each has its length before it, in 4 bytes."""
    out, position = [], 0
    while position < len(part):
        (size,) = struct.unpack_from("<I", part, position) if position + 4 <= len(part) else (len(part),)
        position += 4
        if position + size > len(part):
            raise _wrong(f"the input {tensor.name!r} has a text that is cut short")
        try:
            out.append(str(part[position : position + size], "utf-8"))
        except UnicodeDecodeError:
            raise _wrong(f"the input {tensor.name!r} has a text that is not UTF-8") from None
        position += size
    return out


def infer_answer(
    request: InferRequest, model: Model, info: ModelInfo, scores: Scores, coins: Coins | None = None
) -> tuple[bytes, dict[str, str]]:
    """The body of an answer, and its headers.

    Parameters
    ----------
    coins
        Say which events are to be let pass, in the output `explore`; None: there is no such output.

    Raises
    ------
    Refusal
        422: there is no output of that name.
    """
    made: dict[str, NDArray[Any]] = {"score": np.array(scores.scores, dtype="<f8")}
    if scores.probabilities is not None:
        rows = [list(each.values()) for each in scores.probabilities]
        width = len(rows[0]) if rows else len(model.classes)
        made["probabilities"] = np.array(rows, dtype="<f8").reshape(len(rows), width)
    parameters: dict[str, Any] = {"slots": info.slots, "time": info.time}
    if coins is not None:
        made["explore"] = np.array([coins.marks(score) for score in scores.scores], dtype=np.bool_)
        parameters |= coins._asdict()
    wanted = request.outputs or [RequestedOutput(name) for name in made]
    every = bool((request.parameters or {}).get("binary_data_output", False))
    outputs: list[Tensor] = []
    tail = b""
    for output in wanted:
        if output.name not in made:
            raise _wrong(f"there is no output {output.name!r}; outputs are {', '.join(made)}")
        values = made[output.name]
        kind = "BOOL" if values.dtype == np.bool_ else "FP64"
        tensor = Tensor(output.name, list(values.shape), kind)
        if (output.parameters or {}).get("binary_data", every):
            tensor.parameters = {"binary_data_size": values.nbytes}
            tail += values.tobytes()
        else:
            tensor.data = values.ravel().tolist()
        outputs.append(tensor)
    text = _encode(InferAnswer(info.name, str(info.slots), parameters, outputs, request.id))
    if not tail:
        return text, {"Content-Type": "application/json"}
    return text + tail, {"Content-Type": "application/octet-stream", HEADER_LENGTH: str(len(text))}


def model_metadata(
    model: Model, info: ModelInfo, decoder: Decoder, coins: Coins | None = None
) -> ModelMetadata:
    """What the protocol says of a model: inputs are its fields, one tensor each."""
    fields: Sequence[str] = decoder.fields or [str(name) for name in model.features]
    outputs = [TensorMetadata("score", "FP64", [-1])]
    if model.multiclass:
        outputs.append(TensorMetadata("probabilities", "FP64", [-1, len(model.classes)]))
    if coins is not None:
        outputs.append(TensorMetadata("explore", "BOOL", [-1]))
    inputs = [TensorMetadata(name, "FP64", [-1]) for name in fields]
    return ModelMetadata(info.name, [str(info.slots)], "streampair", inputs, outputs)


def _wrong(problem: str) -> Refusal:
    return Refusal(
        422,
        problem,
        fix="send one tensor of shape [n] for each feature, or one matrix [n, features]; the metadata of the "
        "model names them",
    )
