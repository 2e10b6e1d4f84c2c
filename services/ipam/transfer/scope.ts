/** Which keys belong to a datastore. */

/** Where a datastore's keys are: Calico's, and Podwire's own beside them; in the order of the keys. */
export function rootsOf(prefix: string): readonly string[] {
  const roots = [`${prefix}/`, `/podwire${prefix}/`];
  // Of the prefix /podwire, the second lies within the first.
  return roots.filter((root) => !roots.some((other) => other !== root && root.startsWith(other))).sort();
}

/** Says that an import into the datastore is under way, or was once. */
export function markerKey(prefix: string): string {
  return `/podwire${prefix}/import`;
}

/**
 * Processes' own keys, which mean nothing without them: the import's mark, what tells late transactions of an etcd, and by what a replica
 * sees that its watch has come so far.
 */
export function isPassing(prefix: string, key: string): boolean {
  const own = `/podwire${prefix}/`;
  if (key === markerKey(prefix) || key === `${prefix}/podwire/barrier`) return true;
  return key.startsWith(`${own}fences/`) || key.startsWith(`${own}releases/`);
}

/** A key of one datastore as it is in another; undefined for a key that is none of its. */
export function rewriteKey(key: string, from: string, to: string): string | undefined {
  for (const [source, target] of [
    [`${from}/`, `${to}/`],
    [`/podwire${from}/`, `/podwire${to}/`],
  ] as const)
    if (key.startsWith(source)) return target + key.slice(source.length);
  return undefined;
}
