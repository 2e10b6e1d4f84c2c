import { formatAddress, parseAddress, type Address } from '../net/address.js';

/** Transport protocols that have ports, with their numbers (IANA). */
export const PORT_PROTOCOLS = { tcp: 6, udp: 17, sctp: 132 } as const;

export type PortProtocol = keyof typeof PORT_PROTOCOLS;

/** A port of the node that leads to a port of a pod. */
export interface HostPort {
  readonly protocol: PortProtocol;
  readonly hostPort: number;
  readonly podPort: number;
  /** The node's address; undefined: any address of the pod's families. */
  readonly hostAddress: Address | undefined;
}

/** The place of a host port on the node, which one pod can have. */
export type HostPortKey = Pick<HostPort, 'protocol' | 'hostPort' | 'hostAddress'>;

/** A host port in text form, with every field unchecked. */
export interface HostPortText {
  readonly protocol: string;
  readonly hostPort: number;
  readonly podPort: number;
  /** Empty: any. */
  readonly hostAddress: string;
}

const PORT_MAX = 65_535;

/** Names of the fields as a source of host ports spells them. */
type FieldNames = Readonly<Record<keyof HostPortText, string>>;

const FIELD_NAMES: FieldNames = {
  protocol: 'protocol',
  hostPort: 'hostPort',
  podPort: 'podPort',
  hostAddress: 'hostAddress',
};

/**
 * Reads a pod's host ports.
 * @param report - receives every fault, with the position and the field that it is about
 * @returns the valid ones
 */
export function readHostPorts(
  texts: readonly HostPortText[],
  report: (field: string, reason: string) => void,
  names = FIELD_NAMES,
): readonly HostPort[] {
  const positions = new Map<string, number>();
  return texts.flatMap((text, position) => {
    const reportAt = (name: keyof HostPortText, reason: string) => report(`[${position}].${names[name]}`, reason);
    const hostPort = readHostPort(text, reportAt);
    if (!hostPort) return [];
    const key = formatHostPortKey(hostPort);
    const first = positions.get(key);
    if (first === undefined) positions.set(key, position);
    else report(`[${position}]`, `repeats ${key} of [${first}]; map each port of the node once`);
    return [hostPort];
  });
}

function readHostPort(
  text: HostPortText,
  report: (name: keyof HostPortText, reason: string) => void,
): HostPort | undefined {
  const protocol = protocolOf(text.protocol);
  if (!protocol) report('protocol', `is ${JSON.stringify(text.protocol)}; use tcp, udp or sctp`);
  for (const name of ['hostPort', 'podPort'] as const)
    if (!isPort(text[name])) report(name, `is ${text[name]}; a port is 1 to ${PORT_MAX}`);
  const given = text.hostAddress === '' ? undefined : parseAddress(text.hostAddress);
  // 0.0.0.0 and ::, however spelled, stand for any address of the node.
  const isAny = text.hostAddress === '' || given?.value === 0n;
  const hostAddress = isAny ? undefined : given;
  if (!isAny && !given) report('hostAddress', `is ${JSON.stringify(text.hostAddress)}; must be an IP address`);
  const isValid = protocol && isPort(text.hostPort) && isPort(text.podPort) && (isAny || hostAddress);
  return isValid ? { protocol, hostPort: text.hostPort, podPort: text.podPort, hostAddress } : undefined;
}

function protocolOf(text: string): PortProtocol | undefined {
  const lowerCase = text.toLowerCase();
  return lowerCase === 'tcp' || lowerCase === 'udp' || lowerCase === 'sctp' ? lowerCase : undefined;
}

function isPort(value: number): boolean {
  return Number.isInteger(value) && value >= 1 && value <= PORT_MAX;
}

export function hostPortText({ protocol, hostPort, podPort, hostAddress }: HostPort): HostPortText {
  return { protocol, hostPort, podPort, hostAddress: hostAddress ? formatAddress(hostAddress) : '' };
}

/** `tcp/8080`, `udp/192.0.2.1:53`, `tcp/[fd00::1]:80`. */
export function formatHostPortKey({ protocol, hostPort, hostAddress }: HostPortKey): string {
  if (!hostAddress) return `${protocol}/${hostPort}`;
  const address = formatAddress(hostAddress);
  return `${protocol}/${hostAddress.family === 6 ? `[${address}]` : address}:${hostPort}`;
}
