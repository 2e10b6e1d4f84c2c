import { constants } from 'node:os';
import { getSystemErrorMap } from 'node:util';

/** Remedies for errors that an operator can fix. */
const NEXT_STEP: Readonly<Record<string, string>> = {
  EPERM: 'the process needs CAP_NET_ADMIN and CAP_SYS_ADMIN (run it as root)',
  EACCES: 'the process needs CAP_NET_ADMIN (run it as root)',
  EROFS:
    'mount /proc/sys read-write for this process, or select a writable mount of proc (PODWIRE_NODE_PROC_DIRECTORY)',
  EOPNOTSUPP: 'the kernel lacks this feature; load the module or use a kernel that has it',
  EINTR: 'the kernel changed during every attempt to list it; try again',
  ETIMEDOUT: 'the kernel did not answer in time; whether the change was made is unknown, read it back',
};

/** Names by number. Where one number has two, the kernel's name wins: EAGAIN and EOPNOTSUPP. */
const NAMES: ReadonlyMap<number, string> = new Map(
  Object.entries(constants.errno)
    .filter(([name]) => name !== 'EWOULDBLOCK' && name !== 'ENOTSUP')
    .map(([name, number]) => [number, name]),
);

/** Name and text of an errno value: 17 → `EEXIST`, `file already exists`. */
export function describeErrno(errno: number): readonly [code: string, meaning: string] {
  const [, meaning = 'no description'] = getSystemErrorMap().get(-errno) ?? [];
  return [NAMES.get(errno) ?? `errno ${errno}`, meaning];
}

export interface NetlinkErrorDetails {
  readonly operation: string;
  readonly object: string;
  readonly errno: number;
  readonly kernelMessage: string | undefined;
}

/** The kernel refused an operation, or could not be queried. Callers decide by `code`; the texts are for operators. */
export class NetlinkError extends Error {
  override readonly name: string = 'NetlinkError';
  /** The operation: `link.add`, `open namespace`. */
  readonly operation: string;
  /** The object: `veth podw0123 peer eth0`. */
  readonly object: string;
  /** The positive errno value. */
  readonly errno: number;
  /** Its name: `EEXIST`. */
  readonly code: string;
  /** The kernel's extended acknowledgement, if any. */
  readonly kernelMessage: string | undefined;

  constructor(details: NetlinkErrorDetails) {
    const [code, meaning] = describeErrno(details.errno);
    const parts = [
      `${details.operation} ${details.object}: ${code} (${meaning})`,
      details.kernelMessage,
      NEXT_STEP[code],
    ];
    super(parts.filter((part) => part !== undefined).join(': '));
    this.operation = details.operation;
    this.object = details.object;
    this.errno = details.errno;
    this.code = code;
    this.kernelMessage = details.kernelMessage;
  }
}

/** The path exists but is not a network namespace. Its `code` is EINVAL. */
export class NotANetworkNamespaceError extends NetlinkError {
  override readonly name: string = 'NotANetworkNamespaceError';
}

/** A method was called on a closed namespace. */
export class NamespaceClosedError extends Error {
  override readonly name = 'NamespaceClosedError';

  constructor(namespace: string) {
    super(`network namespace ${namespace} is closed: open it again`);
  }
}

/** An invalid argument, rejected before any kernel request. `path` is its position: `requests[2].peer.mac`. */
export class ArgumentError extends TypeError {
  override readonly name = 'ArgumentError';
  readonly path: string;

  constructor(path: string, problem: string) {
    super(`${path}: ${problem}`);
    this.path = path;
  }
}
