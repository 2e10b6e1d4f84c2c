import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';

/** An errno of the kernel with what it was about: the border between its errors and Podwire's failures. */
export interface Refusal {
  /** As the addon names operations: `link.add`. */
  readonly operation: string;
  readonly object: string;
  /** Name of the error: `EEXIST`. */
  readonly errno: string;
  /** For people: operation, object, errno, the kernel's own text. */
  readonly message: string;
  readonly cause?: unknown;
}

/** Errors that say that the kernel was built, or is run, without something. */
const UNSUPPORTED = ['EOPNOTSUPP', 'EAFNOSUPPORT', 'EPROTONOSUPPORT'];

/** Errors of opening that speak of the path alone. EINVAL: what is there is no network namespace. */
const WRONG_PATH: Readonly<Record<string, string>> = {
  ENOENT: 'does not exist',
  ENOTDIR: 'does not exist',
  EINVAL: 'is not a network namespace',
  EACCES: 'cannot be read',
  ELOOP: 'is a loop of symbolic links',
  ENAMETOOLONG: 'is too long a path',
  ENXIO: 'is not a network namespace',
};

/** The failure behind an operation that the kernel refused. */
export function kernelFailure(refusal: Refusal): Failure {
  const { operation, object, errno, message, cause } = refusal;
  const text = lacksIpv6(refusal) ? `${message}: ${WITHOUT_IPV6}` : message;
  return new Failure(codeOf(refusal), text, { details: { operation, object, errno }, cause });
}

const WITHOUT_IPV6 =
  'this kernel has no IPv6; give the pod IPv4 addresses alone, or start the node with IPv6 (without ipv6.disable=1)';

/** A kernel without IPv6 has none of its settings; one with it has all that pods need but optional ones. */
function lacksIpv6({ operation, object, errno }: Refusal): boolean {
  return operation === 'sysctl.write' && errno === 'ENOENT' && /\bnet[./]ipv6\b/.test(object);
}

function codeOf({ operation, errno }: Refusal): FailureCode {
  if (errno === 'EEXIST' && operation === 'link.add') return 'INTERFACE_EXISTS';
  if (errno === 'EEXIST' && operation === 'route.add') return 'ROUTE_TAKEN';
  // A sysctl that is not there is a feature that is not there.
  if (errno === 'ENOENT' && operation === 'sysctl.write') return 'KERNEL_UNSUPPORTED';
  return UNSUPPORTED.includes(errno) ? 'KERNEL_UNSUPPORTED' : 'KERNEL_REFUSED';
}

/** The failure behind a network namespace that could not be opened. */
export function openFailure(netns: string, refusal: Refusal): Failure {
  const reason = WRONG_PATH[refusal.errno];
  return reason === undefined ? kernelFailure(refusal) : invalidNetns(netns, { reason, cause: refusal.cause });
}

/** The refusal of the node's own namespace as a pod's. */
export function ownNamespace(netns: string): Failure {
  return invalidNetns(netns, { reason: 'is the node’s own network namespace', cause: undefined });
}

interface WhyInvalid {
  readonly reason: string;
  readonly cause: unknown;
}

function invalidNetns(netns: string, { reason, cause }: WhyInvalid): Failure {
  return new Failure('INVALID_NETNS', `netns ${netns} ${reason}: pass the path of the pod’s own network namespace`, {
    violations: [{ field: 'pod.netns', reason }],
    details: { netns },
    cause,
  });
}

/** Whether the kernel refused because a link, or what is on it, is not there. */
export function isOfMissingLink(error: unknown): boolean {
  return error instanceof Failure && ['ENODEV', 'ENOENT'].some((errno) => error.details.errno === errno);
}
