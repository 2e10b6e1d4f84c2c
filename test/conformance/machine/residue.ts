import { readdirSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

import type { Namespace } from './namespace.js';

/** Files with host-local's last position: not allocations. */
const NO_LEASE = /(^|\/)(last_reserved_ip\.\d+|lock)$/;

/** The kernel's objects in a namespace, one line each: links, addresses, routes, rules, packet filter. */
export function kernelHoldings(namespace: Namespace): readonly string[] {
  const contents = namespace.contents();
  const links = contents.links.flatMap(({ name, addresses }) => [
    `link ${name}`,
    // The kernel adds link-local addresses by itself, some time after a link is up.
    ...addresses.filter((address) => !address.startsWith('fe80:')).map((address) => `address ${address} dev ${name}`),
  ]);
  const routes = contents.routes.map(({ text }) => `route ${text}`);
  const rules = contents.rules.map((rule) => `rule ${rule.replace(/\s+/g, ' ')}`);
  return [...links, ...routes, ...rules, ...contents.packetFilter.map((line) => `nft ${line.trim()}`)];
}

/** The records of an IPAM plugin in a folder, one line for each file. */
export function leases(folder: string): readonly string[] {
  const files = readdirSync(folder, { recursive: true, withFileTypes: true }).filter((entry) => entry.isFile());
  const paths = files.map((entry) => join(entry.parentPath, entry.name)).filter((path) => !NO_LEASE.test(path));
  return paths.map((path) => `lease ${path.slice(folder.length + 1)}: ${contentOf(path).replace(/\s+/g, ' ').trim()}`);
}

function contentOf(path: string): string {
  try {
    return readFileSync(path, 'utf8');
  } catch {
    // Released between the listing of the folder and this one.
    return '';
  }
}

/** The objects that were added since; repeated according to their number. */
export function added(before: readonly string[], after: readonly string[]): readonly string[] {
  const rest = [...before];
  return after.filter((line) => {
    const index = rest.indexOf(line);
    if (index >= 0) rest.splice(index, 1);
    return index < 0;
  });
}
