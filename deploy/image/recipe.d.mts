interface Workspace {
  readonly project: string;
  readonly files: readonly string[];
}

export const ARCHITECTURES: Readonly<Record<string, { readonly gnu: string; readonly node: string }>>;
export const COMPILED_IN: readonly string[];
export const CONFIG: {
  readonly user: string;
  readonly workingDirectory: string;
  readonly environment: Readonly<Record<string, string>>;
  readonly labels: Readonly<Record<string, string>>;
};
export const NODE: {
  readonly version: string;
  readonly integrity: Readonly<Record<string, string>>;
  readonly program: string;
};
export const PROGRAMS: Readonly<Record<string, string>>;
export const USERS: readonly { readonly name: string; readonly id: number }[];
export const WORKSPACES: Readonly<Record<string, Workspace>>;
