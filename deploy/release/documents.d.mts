type Digests = Readonly<Record<string, string>>;
interface Release {
  readonly digests: Digests;
  readonly commit: { readonly version: string; readonly revision: string };
  readonly sboms: readonly unknown[];
  readonly builder: Readonly<Record<string, string>>;
}

export function notesOf(changelog: string, version: string): string;
export function digestsOf(folder: string, names: readonly string[]): Digests;
export function checksums(digests: Digests): string;
export function provenance(release: Release): unknown;
