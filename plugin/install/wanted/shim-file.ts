/** Names under which container runtimes run the shim: as the plugin, and as an IPAM plugin under another's. */
export const BINARY_NAMES = ['podwire', 'podwire-ipam'] as const;

/** Permissions of a program that container runtimes run. */
export const BINARY_MODE = 0o755;

/** What the shim says of itself (shim/src/main.cc), of whatever release it is. */
const SHIM_MARK = 'podwire: CNI plugin; hands each call to the resident podwire-plugin';

/** Whether a program is Podwire's shim, of this release or another. Nothing is run for that. */
export function isShim(bytes: Buffer): boolean {
  return bytes.includes(SHIM_MARK);
}
