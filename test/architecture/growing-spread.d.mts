import type { Rule } from 'eslint';

export declare const growingSpread: Rule.RuleModule;
