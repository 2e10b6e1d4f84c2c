/** Where a watcher goes on from. */
export interface WatchPosition {
  /** Which datastore the revision is of; an import begins a new one. */
  readonly datastore: string;
  /** What the watcher asked for: {@link queryKey}. */
  readonly query: string;
  /** Every change up to it was received. */
  readonly revision: number;
}

const VERSION = 'w1';

/** The opaque text that clients keep: `w1.<datastore>.<query>.<revision>`, in base64url. */
export function formatToken({ datastore, query, revision }: WatchPosition): string {
  return Buffer.from([VERSION, datastore, query, revision].join('.')).toString('base64url');
}

/** @returns undefined when the text is no token */
export function parseToken(token: string): WatchPosition | undefined {
  const text = Buffer.from(token, 'base64url').toString();
  const match = /^w1\.([^.]*)\.([^.]*)\.(\d{1,15})$/.exec(text);
  if (!match) return undefined;
  const [, datastore = '', query = '', revision] = match;
  const position = { datastore, query, revision: Number(revision) };
  return formatToken(position) === token ? position : undefined;
}
