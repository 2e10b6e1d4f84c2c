interface Build {
  readonly arch: string;
  readonly source: string;
  readonly layers: { readonly base: string; readonly podwire: string };
  readonly commit: { readonly version: string; readonly epochSeconds: number };
  readonly work: string;
  readonly output: string;
}

export function writePackages(build: Build): void;
