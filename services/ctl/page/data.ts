import type { Phase } from '@podwire/shared/telemetry/phases';

/** One ADD of a pod. */
export interface Add {
  /** Stable while podwire-node keeps the command. */
  readonly id: string;
  readonly node: string;
  /** NAMESPACE/NAME, or the container ID. */
  readonly pod: string;
  /** RFC 3339. */
  readonly startedAt: string;
  /** `success`, or the failure's code. */
  readonly result: string;
  readonly message: string | null;
  readonly durationMs: number;
  readonly addresses: readonly string[];
  readonly containerId: string | null;
  readonly traceId: string | null;
  /** Phases in the order of stacking. They add up to `durationMs`. */
  readonly phases: readonly { readonly phase: Phase; readonly ms: number }[];
  readonly intervals: readonly {
    readonly name: string;
    /** A phase, or one of a later release. */
    readonly phase: string;
    readonly startMs: number;
    readonly durationMs: number;
    readonly depth: number;
  }[];
}

/** Failed ADDs with one reason. */
export interface FailedAdds {
  readonly count: number;
  readonly newest: Add;
}

/** Recent ADDs of one or several nodes. */
export interface AddSummary {
  readonly addCount: number;
  readonly failedCount: number;
  /** Start of the earliest ADD, RFC 3339; null without any. */
  readonly since: string | null;
  /** Phases of the listed percentiles, in the order of stacking. */
  readonly phases: readonly Phase[];
  /** The successful ADD at each rank: its phases add up, separate percentiles of phases do not. */
  readonly percentiles: readonly { readonly name: string; readonly add: Add }[];
  /** Slowest successful ADDs. */
  readonly slowest: readonly Add[];
  /** The most frequent reason first. */
  readonly failures: readonly FailedAdds[];
  /** Newest first. */
  readonly newest: readonly Add[];
}

/** A table of podwirectl. A column with `right` has numbers. */
export interface PageTable {
  readonly title?: string;
  readonly columns: readonly (string | { readonly right: string })[];
  readonly rows: readonly (readonly string[])[];
  /** Shown where there is no row. */
  readonly none: string;
}

/** Content of the page, read again every two seconds. */
export interface PageData {
  /** `Node node-1`. */
  readonly scope: string;
  readonly adds: AddSummary;
  /** Things that an operator should correct, as `podwirectl status` lists it. */
  readonly problems: readonly {
    readonly severity: 'error' | 'warning';
    readonly object: string;
    readonly text: string;
    readonly next: string;
  }[];
  readonly tables: readonly PageTable[];
  /** Reasons why parts are missing or old. */
  readonly faults: readonly string[];
  /** Buttons. Each sends `POST actions/NAME`. */
  readonly actions: readonly { readonly name: string; readonly text: string }[];
}
