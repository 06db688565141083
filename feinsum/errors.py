"""The errors of the project: one tree, each with a stable code.

The codes are part of the public interface: the command line prints them and
the REST service puts them into its problem documents. The page
``docs/reference/errors.md`` lists them, with what to do.
"""

from __future__ import annotations


class FeinsumError(Exception):
    """Root of all errors that this package raises deliberately."""

    code = "feinsum-error"


def make_error(code: str, message: str) -> FeinsumError:
    """Return the error of a stable code, as reported by another process.

    >>> make_error("wrong-result", "row 3 differs")
    WrongResultError('row 3 differs')
    """
    if code == NotAnEinsumError.code:
        return NotAnEinsumError(message, rule="reported")
    if code == NotAKernelError.code:
        return NotAKernelError(message, rule="reported")
    todo: list[type[FeinsumError]] = [FeinsumError]
    while todo:
        kind = todo.pop()
        if kind.code == code:
            return kind(message)
        todo += kind.__subclasses__()
    return FeinsumError(f"{code}: {message}")


class InvalidOptionError(FeinsumError, ValueError):
    """An option, or the environment variable for it, has an invalid value."""

    code = "invalid-option"


class InvalidEinsumError(FeinsumError, ValueError):
    """Subscripts, shapes or dtypes do not form a valid batched einsum.

    Attributes:
        rules: codes of the broken rules of :mod:`feinsum.ir.einsums`.
    """

    code = "invalid-einsum"

    def __init__(self, message: str, *, rules: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.rules = rules


class InvalidTypeError(InvalidEinsumError, TypeError):
    """An argument of a call has a type or dtype that is not possible there."""

    code = "invalid-type"


class InvalidPathError(InvalidEinsumError, RuntimeError):
    """A contraction path does not end with one array; numpy raises RuntimeError."""

    code = "invalid-path"


class CanonicalizationError(FeinsumError):
    """The canonical form of an einsum could not be computed."""

    code = "canonicalization-failed"


class NotAnEinsumError(FeinsumError, ValueError):
    """A Loopy kernel, or a part of it, is not a functional batched einsum.

    Attributes:
        rule: stable code of the broken grammar rule.
        instructions: ids of the instructions concerned.
    """

    code = "not-an-einsum"

    def __init__(
        self, message: str, *, rule: str, instructions: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message)
        self.rule = rule
        self.instructions = instructions


class NotAKernelError(NotAnEinsumError, TypeError):
    """The value given for a Loopy kernel is not one."""

    code = "not-a-kernel"


class TransformError(FeinsumError):
    """A transform could not be applied to a kernel."""

    code = "transform-failed"


class InvalidParameterError(TransformError, ValueError):
    """A parameter of a transform is outside its space."""

    code = "invalid-parameter"


class UnknownTransformError(TransformError, LookupError):
    """No transform of that name and version is registered here."""

    code = "unknown-transform"


class MeasurementError(FeinsumError):
    """A kernel could not be measured."""

    code = "measurement-failed"


class DeviceUnavailableError(MeasurementError):
    """There is no device, or not the requested one."""

    code = "device-unavailable"


class BuildError(MeasurementError):
    """Code generation or a compiler failed on a kernel."""

    code = "build-failed"


class DeviceLostError(MeasurementError):
    """A kernel cost this process its GPU; only another process can use it again."""

    code = "device-lost"


class TrialTimeoutError(MeasurementError):
    """A trial exceeded its time limit and was stopped."""

    code = "trial-timeout"


class TrialCrashError(MeasurementError):
    """The process of a trial died."""

    code = "trial-crashed"


class WrongResultError(MeasurementError):
    """A kernel disagrees with the reference evaluator."""

    code = "wrong-result"


class InvalidSparseArrayError(FeinsumError, ValueError):
    """A sparse array, or a file of one, breaks a rule of its format.

    Attributes:
        rule: stable code of the broken rule; the documentation of sparse arrays
            has the list.
    """

    code = "invalid-sparse-array"

    def __init__(self, message: str, *, rule: str = "reported") -> None:
        super().__init__(message)
        self.rule = rule


class BoundError(FeinsumError, ValueError):
    """A lower bound was requested without a size, or for too small a memory."""

    code = "bound-failed"


class PlanError(FeinsumError, ValueError):
    """An einsum cannot be planned, or a plan cannot be read or run.

    Attributes:
        rules: codes of the broken rules; the documentation of plans has the list.
    """

    code = "plan-failed"

    def __init__(self, message: str, *, rules: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.rules = rules


class ProgramError(FeinsumError, ValueError):
    """A program of einsums is invalid, or cannot be decomposed or run.

    Attributes:
        rules: codes of the broken rules; the documentation of programs has the list.
    """

    code = "program-failed"

    def __init__(self, message: str, *, rules: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.rules = rules


class SignatureError(FeinsumError):
    """Facts cannot be signed, or signatures cannot be checked."""

    code = "signature-failed"


class SigningKeyError(SignatureError, ValueError):
    """A private key cannot be written, or a file has no key that can sign."""

    code = "signing-key"


class TrustedSignersError(SignatureError, ValueError):
    """The list of trusted signers has something other than public keys."""

    code = "trusted-signers"


class StoreError(FeinsumError):
    """A store of tuning records failed."""

    code = "store-failed"


class RecordNotFoundError(StoreError, LookupError):
    """The store has no such record."""

    code = "record-not-found"


class InvalidRecordError(StoreError, ValueError):
    """A document is not a valid tuning record."""

    code = "invalid-record"


class ImplausibleError(InvalidRecordError):
    """A fact, or limits of a device, that cannot have been measured.

    Attributes:
        findings: for each a code of :mod:`feinsum.records.plausibility`, what was
            given, and what was expected.
    """

    code = "implausible"

    def __init__(
        self, message: str, *, findings: tuple[tuple[str, str, str], ...] = ()
    ) -> None:
        super().__init__(message)
        self.findings = findings


class SchemaVersionError(StoreError):
    """A newer version wrote the database, or an older one and it is only read."""

    code = "schema-version"


class StoreUnavailableError(StoreError):
    """The database cannot be opened, read or written."""

    code = "store-unavailable"


class ServiceError(FeinsumError):
    """The service failed, or refused a request."""

    code = "service-failed"


class InvalidRequestError(ServiceError, ValueError):
    """A parameter or the body of a request is invalid."""

    code = "invalid-request"


class NoSuchRouteError(ServiceError, LookupError):
    """The service has no such path."""

    code = "no-such-route"


class WrongMethodError(ServiceError):
    """The path does not support the HTTP method."""

    code = "wrong-method"


class WrongContentTypeError(ServiceError):
    """The body of a request is not plain JSON."""

    code = "wrong-content-type"


class TooLargeError(ServiceError):
    """The body of a request exceeds the service's limit."""

    code = "too-large"


class TooManyRequestsError(ServiceError):
    """Requests exceed the rate limit of the service."""

    code = "too-many-requests"


class TooSlowError(ServiceError):
    """A request did not arrive in time."""

    code = "too-slow"


class NotAuthenticatedError(ServiceError):
    """A request needs a key, or its key is unknown, revoked or expired."""

    code = "not-authenticated"


class NotPermittedError(ServiceError):
    """The key of a request lacks the required scope."""

    code = "not-permitted"


class FeinsumWarning(UserWarning):
    """A kernel is returned unchanged, or numpy answers calls; the message says why."""
