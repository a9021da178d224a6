#!/bin/bash
exec sleep infinity
