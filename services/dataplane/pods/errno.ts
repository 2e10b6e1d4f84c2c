import type { FailureCode } from '@podwire/shared/failure/codes';
import { Failure } from '@podwire/shared/failure/failure';

/** An error of the kernel with its context: input for the translation to Podwire's failures. */
export interface Refusal {
  /** The addon's name of the operation: `link.add`. */
  readonly operation: string;
  readonly object: string;
  readonly errno: string;
  /** Text for operators: operation, object, errno, the kernel's own message. */
  readonly message: string;
  readonly cause?: unknown;
}

/** Errors for a feature that the kernel was built or started without. */
const UNSUPPORTED = ['EOPNOTSUPP', 'EAFNOSUPPORT', 'EPROTONOSUPPORT'];

/** Errors of opening that concern the path alone. EINVAL: the file is not a network namespace. */
const PATH_ERRORS: Readonly<Record<string, string>> = {
  ENOENT: 'does not exist',
  ENOTDIR: 'does not exist',
  EINVAL: 'is not a network namespace',
  EACCES: 'cannot be read',
  ELOOP: 'is a loop of symbolic links',
  ENAMETOOLONG: 'is too long a path',
  ENXIO: 'is not a network namespace',
};

/** The failure for an operation that the kernel refused. */
export function kernelFailure(refusal: Refusal): Failure {
  const { operation, object, errno, message, cause } = refusal;
  const advice = lacksIpv6(refusal) ? NO_IPV6_ADVICE : lacksBuckets(refusal) ? NO_BUCKETS_ADVICE : undefined;
  const text = advice === undefined ? message : `${message}: ${advice}`;
  return new Failure(codeOf(refusal), text, { details: { operation, object, errno }, cause });
}

const NO_IPV6_ADVICE =
  'this kernel has no IPv6; give the pod IPv4 addresses alone, or start the node with IPv6 (without ipv6.disable=1)';

/** Whether the error means that the kernel has no IPv6. A kernel with IPv6 has every required setting. */
function lacksIpv6({ operation, object, errno }: Refusal): boolean {
  return operation === 'sysctl.write' && errno === 'ENOENT' && /\bnet[./]ipv6\b/.test(object);
}

const NO_BUCKETS_ADVICE =
  'this kernel has no tbf, which limits the bandwidth of pods; load the module (modprobe sch_tbf)';

function lacksBuckets({ operation, errno }: Pick<Refusal, 'operation' | 'errno'>): boolean {
  return operation === 'qdisc.replace' && errno === 'ENOENT';
}

function codeOf({ operation, errno }: Refusal): FailureCode {
  if (errno === 'EEXIST' && operation === 'link.add') return 'INTERFACE_EXISTS';
  if (errno === 'EEXIST' && operation === 'route.add') return 'ROUTE_TAKEN';
  // A missing sysctl means that the kernel lacks the feature.
  if (errno === 'ENOENT' && operation === 'sysctl.write') return 'KERNEL_UNSUPPORTED';
  if (lacksBuckets({ operation, errno })) return 'KERNEL_UNSUPPORTED';
  return UNSUPPORTED.includes(errno) ? 'KERNEL_UNSUPPORTED' : 'KERNEL_REFUSED';
}

/** The failure for a network namespace that could not be opened. */
export function openFailure(netns: string, refusal: Refusal): Failure {
  const reason = PATH_ERRORS[refusal.errno];
  return reason === undefined ? kernelFailure(refusal) : invalidNetns(netns, { reason, cause: refusal.cause });
}

/** The failure for the node's own namespace given as a pod's. */
export function ownNamespaceFailure(netns: string): Failure {
  return invalidNetns(netns, { reason: 'is the node’s own network namespace', cause: undefined });
}

interface InvalidNetnsCause {
  readonly reason: string;
  readonly cause: unknown;
}

function invalidNetns(netns: string, { reason, cause }: InvalidNetnsCause): Failure {
  return new Failure('INVALID_NETNS', `netns ${netns} ${reason}; pass the path of the pod’s own network namespace`, {
    violations: [{ field: 'pod.netns', reason }],
    details: { netns },
    cause,
  });
}

/** Whether the kernel refused because a link, or an object on it, does not exist. */
export function isOfMissingLink(error: unknown): boolean {
  return error instanceof Failure && ['ENODEV', 'ENOENT'].some((errno) => error.details.errno === errno);
}
