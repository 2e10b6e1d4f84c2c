type Digests = Readonly<Record<string, string>>;

export function notesOf(changelog: string, version: string): string;
export function digestsOf(folder: string, names: readonly string[]): Digests;
export function checksums(digests: Digests): string;
export function provenance(release: { digests: Digests; commit: Digests; sboms: object; builder: Digests }): unknown;
