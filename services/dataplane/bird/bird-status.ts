import type { SessionState } from './session-state.js';
import type { Session } from './sessions.js';

/** A session that is wanted, and how BIRD says it is. */
export interface KnownSession {
  readonly session: Session;
  /** Undefined while BIRD has not told. */
  readonly state: SessionState | undefined;
}

/** How this node's BIRD is, for whoever asks. */
export interface BirdStatus {
  /** Whether it answered when it was last asked; undefined: it has not been asked yet. */
  readonly isReachable: boolean | undefined;
  /** Why BIRD refused the configuration that it should have; undefined: it has it, or has not been asked. */
  readonly refusal: string | undefined;
  /** In the order of their names. */
  readonly sessions: readonly KnownSession[];
}
