/** The released versions of the specification, oldest first. */
export const VERSIONS = ['0.1.0', '0.2.0', '0.3.0', '0.3.1', '0.4.0', '1.0.0', '1.1.0'] as const;

export type Version = (typeof VERSIONS)[number];

/** A version that no release of the specification has. */
export const ABSURD_VERSION = '99.0.0';

export function isAtLeast(version: Version, least: Version): boolean {
  return VERSIONS.indexOf(version) >= VERSIONS.indexOf(least);
}

/** The versions that both a plugin and this kit know, oldest first. */
export function judged(listed: readonly string[]): readonly Version[] {
  return VERSIONS.filter((version) => listed.includes(version));
}

export type Verb = 'ADD' | 'DEL' | 'CHECK' | 'GC' | 'STATUS' | 'VERSION';

/** The version that added each verb, where that is not the first. */
export const SINCE = { CHECK: '0.4.0', GC: '1.1.0', STATUS: '1.1.0' } as const satisfies Partial<Record<Verb, Version>>;
