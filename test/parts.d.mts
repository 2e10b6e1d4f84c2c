import type { ChildProcess, SpawnOptions } from 'node:child_process';

export interface Part {
  readonly name: string;
  readonly status: number;
  /** Path of what vitest is to have written. */
  readonly report: string;
  /** Path of what it has written, where it was not shown as it ran. */
  readonly log?: string;
}

export interface PartsOptions {
  readonly running: Running;
  /** Folder of the run; each part has one of its own in it. */
  readonly folder: string;
  readonly count: number;
  readonly workersCount: number;
  /** Arguments of Node.js for one part. */
  readonly args: (part: { readonly report: string; readonly selection: readonly string[] }) => readonly string[];
  readonly options: SpawnOptions;
}

export class Running {
  readonly stoppedWith: number | undefined;
  run(args: readonly string[], options: SpawnOptions): Promise<number>;
}

export interface Total {
  readonly missing: readonly string[];
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}

export function statusOf(child: ChildProcess): Promise<number>;
export function queue<T>(tasks: readonly (() => Promise<T>)[], workersCount: number): Promise<T[]>;
export function runParts(options: PartsOptions): Promise<Part[]>;
export function total(parts: readonly Part[]): Total;
export function failures(parts: readonly Part[]): string[];
