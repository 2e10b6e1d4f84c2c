/** Addresses of services. No schemas: zod takes 50 ms to load, which podwirectl would spend on every call. */

const MAX_PORT = 65_535;

/**
 * Why a text is not the address of a gRPC server: `unix:/absolute/path`, or `host:port` with an IPv6 address in brackets. With
 * port 0, a server listens at a free port.
 * @returns undefined for an address
 */
export function rpcAddressFault(address: string): string | undefined {
  if (!/^(unix:\/[^\s]+|(\[[0-9a-fA-F:]+\]|[A-Za-z0-9.-]+):\d{1,5})$/.test(address))
    return 'is neither unix:/absolute/path nor host:port';
  const isPort = address.startsWith('unix:') || Number(/\d+$/.exec(address)?.[0]) <= MAX_PORT;
  return isPort ? undefined : `has a port above ${MAX_PORT}`;
}

export function absolutePathFault(path: string): string | undefined {
  return path.startsWith('/') ? undefined : 'is not an absolute path';
}

const LOOPBACK = /^(127(\.\d{1,3}){3}|\[::1\]|localhost):/;

/** Whether a gRPC address stays within this machine: a unix socket, or loopback. */
export function isLocalAddress(address: string): boolean {
  return address.startsWith('unix:') || LOOPBACK.test(address);
}
