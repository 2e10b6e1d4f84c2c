import type { WatchedKind, WatchedObject } from './watched.js';

/** Where in the stream a message stands, as in the contract. */
export type WatchPhase = 'snapshot' | 'snapshotComplete' | 'changes' | 'bookmark';

/** Makes messages of the contract. What it makes is shared among streams and never changed. */
export interface WatchCodec {
  /** The part of a message that says what became of one object; the parts of a message follow each other. */
  change(change: EncodableChange): Uint8Array;
  /** A whole message. `resumeToken` is empty for none. */
  message(message: WatchMessage): Uint8Array;
}

export type EncodableChange =
  | { readonly type: 'put'; readonly object: WatchedObject }
  | { readonly type: 'delete'; readonly kind: WatchedKind; readonly name: string };

export interface WatchMessage {
  readonly phase: WatchPhase;
  readonly reset: boolean;
  readonly changes: readonly Uint8Array[];
  readonly resumeToken: string;
}
