/** Folder or file whose imports are limited. */
export interface Zone {
  /** Path from the root of the repository. */
  readonly path: string;
  /** Zones, or files in them, that it may import; `*` for all. */
  readonly zones: readonly string[];
  readonly packages: readonly string[];
  readonly builtins: readonly string[];
}

export const ZONES: readonly Zone[];
export const TEST_IMPORTS: { readonly packages: readonly string[]; readonly builtins: readonly string[] };
export const WORKSPACES: Readonly<Record<string, string>>;
